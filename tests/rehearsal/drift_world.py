"""Both stacks brought up by the product's own engine module in an emulated AWS of the test's process.

Machines and the control plane are fakes; so nothing is put into Kubernetes: `Workloads` is left out of the program.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from rich.console import Console

from infra.lifecycle.context import Context
from infra.lifecycle.engine import Engine
from infra.lifecycle.opening import opened
from infra.lifecycle.provision import campaign_settings, foundation_settings
from infra.names import FOUNDATION_STACK
from infra.plan import make_plan
from infra.rehearsal.paths import tools_dir
from infra.rehearsal.providers import install
from infra.spec import Spec
from infra.survey import survey
from tests.rehearsal.aws_fakes import Site, fake_site

SPEC = Path(__file__).parents[2] / "infra/campaigns/rehearsal.yaml"
DIGEST = "d" * 64


@dataclass
class Camp:
    site: Site
    context: Context
    engine: Engine
    said: io.StringIO

    @property
    def console(self) -> Console:
        return Console(file=self.said, width=200)

    def settings(self) -> dict[str, str]:
        return campaign_settings(self.context, DIGEST).to_config()

    def up(self) -> None:
        """Foundation and campaign, as provision does."""
        foundation = foundation_settings(self.context.spec)
        self.engine.up(self.engine.stack(FOUNDATION_STACK, foundation.to_config()))
        self.engine.up(self.engine.stack(self.context.names.stack, self.settings()))

    def client(self, service: str) -> Any:
        return self.context.account.client(service)

    def heard(self) -> str:
        """What was said since the last time."""
        text = self.said.getvalue()
        self.said.seek(0)
        self.said.truncate()
        return text


def campaign_spec(**changes: Any) -> Spec:
    document = yaml.safe_load(SPEC.read_text())
    document["money"] |= {"alarm_email": "someone@example.com"}
    for key, value in changes.items():
        document[key] = document.get(key, {}) | value if isinstance(value, dict) else value
    return Spec.model_validate(document)


@contextmanager
def environment(folder: Path, site: Site) -> Iterator[None]:
    """As a driver inside a site has it: endpoint, keys, the plugins on the PATH."""
    binaries = folder / "bin"
    install(binaries)
    engine = shutil.which("pulumi") or str(tools_dir() / "pulumi")
    key, secret = site.world.operator_key
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": site.world.endpoint_url,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": site.world.region,
            "AWS_DEFAULT_REGION": site.world.region,
            "PULUMI_CONFIG_PASSPHRASE": "",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_HOME": str(folder / "pulumi-home"),
            "BIVOUAC_RESULTS": str(folder / "results"),
            "BIVOUAC_SITE": "in-process",
            "PATH": f"{binaries}:{Path(engine).parent}:{Path(sys.executable).parent}:/usr/bin:/bin",
        }.items():
            patch.setenv(name, value)
        with mock.patch("infra.components.campaign.Workloads"):
            yield


@contextmanager
def pitched(folder: Path, spec: Spec | None = None) -> Iterator[Camp]:
    """A campaign opened with its lease; nothing is up yet."""
    spec = spec or campaign_spec()
    with fake_site(folder) as site, environment(folder, site):
        said = io.StringIO()
        plan = make_plan(spec, survey(spec))
        with opened(spec, plan, Console(file=said, width=200), None) as context:
            yield Camp(site, context, Engine(context, context.results / "pulumi"), said)
