"""A campaign of a tenant's in a rehearsal's site, on the nodes of an EKS cluster that another stack has made there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from infra.data import dataset
from infra.rehearsal.site.layout import AWS_ENDPOINT
from infra.spec.campaign import load
from tests.campaign.rehearsal import BIVOUAC, Rehearsal, quick, rehearsing
from tests.rehearsal.standing.landlord import BUCKET, LABEL, SPACE
from tests.root import ROOT
from tests.trainer.agents import World, run
from trainer.contract import TrainConfig

NODES, STEPS, KILL_AFTER, BATCH = 2, 400, 60, 8


def tenant_spec(landlord: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The spec of the page, with the landlord's small job and machine. `changes`: of the section `cluster`."""
    cluster = {
        "context": "racks",
        "namespace": SPACE,
        "nodes": {"labels": {"gpu": LABEL}, "devices": {"nvidia.com/gpu": 1}},
        "shared": {"claim": "scratch", "capacity_gib": 1200, "write_mb_s": 600},
        "s3": {"endpoint": AWS_ENDPOINT, "bucket": BUCKET, "secret": "s3-login"},
        **changes,
    }
    sections = {name: landlord[name] for name in ("data", "checkpoint", "recovery", "preflight")}
    sections["training"] = landlord["training"] | {"global_batch": BATCH * NODES}
    return {
        "campaign": "on-racks", "owner": "ada", "purpose": "a first campaign on our racks", "target": "kubernetes",
        "money": {"budget_usd": 60, "deadline": "4h"},
        "nodes": {"count": NODES, "instance_type": landlord["nodes"]["instance_type"], "usd_per_hour": 2},
        "cluster": cluster, **sections,
    }  # fmt: skip


class Tenant:
    """Who runs `bivouac` beside the landlord's site, with a kubeconfig and no AWS credentials."""

    def __init__(self, rehearsal: Rehearsal, spec: dict[str, Any]) -> None:
        self.rehearsal, self.folder, self.name = rehearsal, rehearsal.folder, spec["campaign"]
        self.path = self.folder / f"{self.name}.yaml"
        self.path.write_text(yaml.safe_dump(spec))
        self.log = self.folder / f"{self.name}.log"
        self.results = self.folder / "results" / "000000000000-kubernetes" / self.name

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command in the site's network, without what the site's operator has for AWS."""
        site = self.rehearsal.found()
        unset = [word for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") for word in ("-u", name)]
        environment = self.rehearsal.environment | site.environment | {"KUBECONFIG": str(self.folder / "racks.yaml")}
        environment["BIVOUAC_LEASE_SECONDS"] = "600"  # a loaded machine is no driver that is gone
        with self.log.open("a") as log:
            return subprocess.Popen(
                site.entry(["env", *unset, *BIVOUAC, *words]),
                env=environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                text=True,
            )

    def run(self, *words: str) -> None:
        assert self.start(*words).wait() == 0, self.log.read_text()

    def kill(self, count: int) -> list[str]:
        """Switch off the last `count` nodes of a gang that trains, at once; their names, none if it is too early."""
        places = {"step": KILL_AFTER, "endpoint": AWS_ENDPOINT, "first": NODES - count}
        return self.ask(_KILL, **places).split()

    def ask(self, code: str, **places: Any) -> str:
        """What the landlord's operator hears, who may read every bucket."""
        return self.rehearsal.python(code.format(bucket=BUCKET, name=self.name, **places))

    def events(self) -> list[dict[str, Any]]:
        """The record."""
        return list(json.loads(self.ask(_EVENTS)))

    def step(self) -> int:
        """The newest step that the steward has seen."""
        return int(self.ask(_STEP))

    def why(self) -> str:
        """What the steward says of its last decision."""
        return self.ask(_WHY)

    def twin(self, folder: Path) -> dict[int, float]:
        """Step -> loss of the same job that nobody disturbs."""
        train = self.ask(f"{_STORE}\nprint(json.dumps(store.get_json('steward/0.json')['train']))")
        config = TrainConfig.model_validate_json(train)
        data = dataset.prepare(load(self.path).spec, lambda words: None)
        world = World(folder, data.folder, config)
        world.root.mkdir()
        return run(world, 1).losses()

    def losses(self) -> list[dict[str, Any]]:
        """The report's points."""
        report = json.loads((self.results / "report.json").read_text())
        return [row for series in report["training"]["losses"] for row in series["points"]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events() if event["kind"] == kind]


_STORE = """
import boto3, json, urllib.request
from infra.record.store import CampaignStore, LIVE
store = CampaignStore(boto3.client("s3"), "{bucket}", "{name}", "reader", "bivouac/campaigns/{name}")
"""
_EVENTS = f"{_STORE}\nprint(json.dumps([event.model_dump(mode='json') for event in store.events()]))"
_WHY = f"{_STORE}\nprint((store.get_json(LIVE) or {{{{}}}}).get('why', ''))"
_STEP = f"{_STORE}\nprint(int((store.get_json(LIVE) or {{{{}}}}).get('step', 0)))"
_KILL = f"""{_STORE}
live = store.get_json(LIVE) or {{{{}}}}
if live.get("in_flight") and int(live["step"]) >= {{step}}:
    nodes = [pod["node"] for pod in live["pods"] if pod["index"] >= {{first}}]
    pages = boto3.client("ec2").get_paginator("describe_instances").paginate()
    machines = [item for page in pages for row in page["Reservations"] for item in row["Instances"]]
    ids = [item["InstanceId"] for item in machines if item.get("PrivateDnsName") in nodes]
    assert len(ids) == len(nodes), (nodes, machines)
    for instance in ids:
        urllib.request.urlopen(urllib.request.Request("{{endpoint}}/_site/kill?instance=" + instance, method="POST"))
    print(" ".join(nodes))
"""


@contextmanager
def borrowed_nodes(folder: Path, nodes: int, **changes: Any) -> Iterator[tuple[Tenant, Callable[..., str]]]:
    """A tenant to whom the landlord lends so many nodes, and the landlord's commands: `look`, and those of its queue.
    `changes`: of the tenant's section `cluster`."""
    size = {"nodes": {"count": nodes}, "training": {"global_batch": BATCH * nodes}}
    landlord_changes = quick(STEPS, campaign="landlord", **size)
    with rehearsing(folder, landlord_changes) as landlord:
        baked = landlord.run("bake", str(landlord.path))
        assert baked.returncode == 0, baked.stdout + baked.stderr
        tenant = Tenant(landlord, tenant_spec(landlord.spec, **changes))
        words = (str(landlord.path), str(tenant.path), str(folder / "racks.yaml"), str(nodes))

        def as_admin(command: str) -> str:
            argv = [sys.executable, "-m", "tests.rehearsal.standing.landlord", command, *words]
            done = landlord.inside("env", f"PYTHONPATH={ROOT}", *argv)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        yield tenant, as_admin
