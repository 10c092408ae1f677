"""A whole campaign in the test's process: the real engine, plugins and program; fake machines and API server."""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from infra.folders import tools_dir
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.rehearsal.aws.strict.settings import SOFT, Strictness
from infra.rehearsal.kubernetes.pki import Authority
from infra.rehearsal.plugins import install
from infra.session.context import Context
from infra.session.session import opened
from infra.spec.campaign import Spec
from infra.spec.names import Names
from tests.rehearsal.fake_kubernetes import FakeKubernetes
from tests.root import ROOT
from tests.worlds.account_site import AccountSite, FakeControlPlane, FakeMachine, fake_site


class Plane(FakeControlPlane):
    """A control plane whose API server really answers HTTP."""

    def __init__(self, settings: dict[str, Any], folder: Path, machines: list[FakeMachine]) -> None:
        self.api = FakeKubernetes(lambda: [node_of(m) for m in machines if m.alive() and m.joined])
        pem = Authority(folder / f"pki-{id(self)}", settings["name"]).pem
        super().__init__(settings, ca_pem=pem, endpoint=self.api.endpoint)

    def freeze(self) -> None:
        self.api.silent.set()

    def thaw(self) -> None:
        self.api.silent.clear()

    def stop(self) -> None:
        if not self.stopped:
            self.api.stop()
        super().stop()


def node_of(machine: FakeMachine) -> dict[str, Any]:
    """The Node that a nodelet would register."""
    group = machine.settings["tags"].get("eks:nodegroup-name", "")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": machine.settings["hostname"],
            "labels": {"bivouac.dev/pool": "gpu" if group.endswith("-gpu") else "system"},
        },
        "spec": {"providerID": machine.provider_id},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": dict(machine.settings["capacity"]),
        },
    }


class CampaignSite:
    """One emulated account with one campaign in it."""

    def __init__(self, site: AccountSite, folder: Path, changes: dict[str, Any]) -> None:
        self.site, self.world, self.folder = site, site.world, folder
        document = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
        document |= {"campaign": "drilled", "rehearsal": {"faults": []}} | changes
        self.spec = Spec.model_validate(document)
        self.plan = make_plan(self.spec, survey(self.spec))
        self.names = Names(self.spec.campaign)
        self.said = StringIO()

    @contextmanager
    def opened(self) -> Iterator[Context]:
        console = Console(file=self.said, width=240)
        with opened(self.spec, self.plan, console, None) as context:
            context.results = self.folder / "results"
            context.outputs |= context.state().finished_stages
            yield context

    def ask(self, route: str, **asked: Any) -> dict[str, Any]:
        body = json.dumps(asked).encode() if asked else b""
        with urllib.request.urlopen(f"{self.world.endpoint_url}/_site/{route}", data=body) as answer:
            return dict(json.loads(answer.read()))

    def plane(self) -> Plane:
        return self.site.planes[-1]  # type: ignore[return-value]

    def client(self, service: str) -> Any:
        return self.site.client(service)


@contextmanager
def camp(folder: Path, strictness: Strictness = SOFT, **changes: Any) -> Iterator[CampaignSite]:
    """An emulated account whose environment this process takes on, for as long as the block runs."""
    before = dict(os.environ)
    with fake_site(folder / "site", strictness) as site:
        world = site.world

        def plane(settings: dict[str, Any]) -> Plane:
            site.planes.append(Plane(settings, folder, site.machines))
            return site.planes[-1]  # type: ignore[return-value]

        world.control_plane_factory = plane
        os.environ.update(_environment(folder, site))
        try:
            yield CampaignSite(site, folder, changes)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _environment(folder: Path, site: AccountSite) -> dict[str, str]:
    install(folder / "bin")
    key, secret = site.world.operator_key
    pulumi_cli = shutil.which("pulumi") or str(tools_dir() / "pulumi")
    path = [str(folder / "bin"), str(Path(pulumi_cli).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        "AWS_ENDPOINT_URL": site.world.endpoint_url,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": site.world.region,
        "AWS_DEFAULT_REGION": site.world.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "PATH": os.pathsep.join(path),
        "PULUMI_HOME": str(folder / "pulumi"),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_CONFIG_PASSPHRASE": "",
        "BIVOUAC_RESULTS": str(folder / "results"),
    }
