"""The real Pulumi engine with the rehearsal's provider plugins, for tests."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pulumi import automation

from infra.folders import tools_dir
from infra.rehearsal.plugins import install

Program = Callable[[], None]
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "PULUMI_CONFIG_PASSPHRASE": "",
    "PULUMI_SKIP_UPDATE_CHECK": "true",
}


class PulumiProject:
    """A stack per test on the real engine, with our plugins on its PATH."""

    def __init__(self, work: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        binaries = work / "bin"
        install(binaries)
        pulumi_cli = shutil.which("pulumi") or str(tools_dir() / "pulumi")
        path = f"{binaries}:{Path(pulumi_cli).parent}:{Path(sys.executable).parent}:/usr/bin:/bin"
        self.environment = {**ENVIRONMENT, **environment, "PATH": path}
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        self.work = work
        (work / "state").mkdir()

    def stack(self, program: Program) -> automation.Stack:
        backend = automation.ProjectBackend(url=f"file://{self.work}/state")
        options = automation.LocalWorkspaceOptions(
            work_dir=str(self.work),
            pulumi_home=str(self.work / "home"),
            env_vars=self.environment,
            project_settings=automation.ProjectSettings(name="providers", runtime="python", backend=backend),
        )
        return automation.create_or_select_stack("test", "providers", program, opts=options)


def counts(result: automation.UpResult | automation.RefreshResult | automation.DestroyResult) -> dict[str, int]:
    return {str(kind): number for kind, number in (result.summary.resource_changes or {}).items() if number}
