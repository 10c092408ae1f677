"""A campaign in a cluster of somebody's: `bivouac run` with a tenant's rights alone, real ranks, and a node killed.

The campaign runs once; each test looks at one thing that it must have shown.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.data import dataset
from infra.rehearsal.site.layout import AWS_ENDPOINT
from infra.spec.campaign import load
from tests.campaign.rehearsal import BIVOUAC, Rehearsal, quick, rehearsing, until
from tests.rehearsal.standing.landlord import BUCKET, LABEL, SPACE
from tests.root import ROOT
from tests.trainer.agents import World, run
from trainer.contract import TrainConfig

pytestmark = [pytest.mark.nightly]
NODES, STEPS, KILL_AFTER, BATCH = 2, 400, 60, 8


def tenant_spec(landlord: dict[str, Any]) -> dict[str, Any]:
    """The spec of the page, with the landlord's small job and machine."""
    cluster = {
        "context": "racks",
        "namespace": SPACE,
        "nodes": {"labels": {"gpu": LABEL}, "devices": {"nvidia.com/gpu": 1}},
        "shared": {"claim": "scratch", "capacity_gib": 1200, "write_mb_s": 600},
        "s3": {"endpoint": AWS_ENDPOINT, "bucket": BUCKET, "secret": "s3-login"},
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

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events() if event["kind"] == kind]


_STORE = """
import boto3, json, urllib.request
from infra.record.store import CampaignStore, LIVE
store = CampaignStore(boto3.client("s3"), "{bucket}", "{name}", "reader", "bivouac/campaigns/{name}")
"""
_EVENTS = f"{_STORE}\nprint(json.dumps([event.model_dump(mode='json') for event in store.events()]))"
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


@dataclass
class Seen:
    tenant: Tenant
    killed: list[str]
    before: str
    """What the landlord's admin sees in its namespaces before the campaign, and after it."""
    after: str


@pytest.fixture(scope="module", params=[1, 2], ids=["a node", "both nodes"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A campaign that has lost nodes, with a spare for each, from the landlord's cluster to the report."""
    folder, count = tmp_path_factory.mktemp("racks"), NODES + request.param
    changes = quick(STEPS, campaign="landlord", nodes={"count": count}, training={"global_batch": BATCH * count})
    with rehearsing(folder, changes) as landlord:
        baked = landlord.run("bake", str(landlord.path))
        assert baked.returncode == 0, baked.stdout + baked.stderr
        tenant = Tenant(landlord, tenant_spec(landlord.spec))
        words = (str(landlord.path), str(tenant.path), str(folder / "racks.yaml"), str(count))

        def as_admin(*arguments: str) -> str:
            command = [sys.executable, "-m", "tests.rehearsal.standing.landlord", *arguments]
            done = landlord.inside("env", f"PYTHONPATH={ROOT}", *command)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        before = as_admin("lend", *words)
        run = tenant.start("run", str(tenant.path), "--json")
        killed = until(lambda: run.poll() is not None or tenant.kill(request.param), "the tenant's gang trains")
        assert run.wait() == 0, tenant.log.read_text()
        yield Seen(tenant, killed, before, as_admin("look", *words))


def test_the_gang_goes_on_on_spare_nodes_and_the_dead_are_left_out(seen: Seen) -> None:
    """Those that die at once are one end of an attempt, and one decision."""
    first, second = seen.tenant.of_kind("attempt.running")
    given_up = seen.tenant.of_kind("node.quarantined")
    assert {row["node"] for row in given_up} == set(seen.killed) and all(row["died"] for row in given_up)
    assert set(seen.killed) <= set(first["nodes"]) and not set(seen.killed) & set(second["nodes"])
    assert seen.tenant.of_kind("archive.verified")


def test_the_losses_equal_those_of_an_undisturbed_twin(seen: Seen, tmp_path: Path) -> None:
    report = json.loads((seen.tenant.results / "report.json").read_text())
    points = [row for series in report["training"]["losses"] for row in series["points"]]
    train = seen.tenant.ask(f"{_STORE}\nprint(json.dumps(store.get_json('steward/0.json')['train']))")
    config = TrainConfig.model_validate_json(train)
    data = dataset.prepare(load(seen.tenant.path).spec, lambda words: None)
    world = World(tmp_path / "twin", data.folder, config)
    world.root.mkdir()
    twin = run(world, 1).losses()
    assert {row["step"] for row in points} == set(twin) == set(range(1, STEPS + 1))
    assert [row for row in points if row["loss"] != twin[row["step"]]] == []


def test_nothing_of_ours_is_left_and_nothing_of_others_is_changed(seen: Seen) -> None:
    assert seen.after == seen.before
    (certified,) = seen.tenant.of_kind("certified")
    assert certified["clean"]
    borrowed = json.loads((seen.tenant.results / "certificate.json").read_text())["borrowed"]
    for node in seen.killed:
        (dead,) = [words for words in borrowed if words.startswith(f"node {node}: ")]
        assert "not Ready" in dead and "left out by us" in dead


def test_a_campaign_that_is_over_is_found_by_its_name(seen: Seen) -> None:
    for command in (("status", "on-racks"), ("checkpoints", "list", "on-racks"), ("down", "on-racks", "--yes")):
        seen.tenant.run(*command)
    text = seen.tenant.log.read_text()
    assert "certificate clean" in text and "golden: read back" in text and "is over and stays as it is" in text


@pytest.mark.parametrize("seen", [1], indirect=True, ids=["a node"])
def test_a_relaunch_goes_on_from_the_checkpoint_with_the_changed_spec(seen: Seen) -> None:
    """The next campaign of the namespace, on the nodes that live: it would train for ever, and is told to end."""

    def steps(count: int) -> dict[str, Any]:
        spec: dict[str, Any] = yaml.safe_load(seen.tenant.path.read_text())
        training = spec["training"] | {"steps": count, "evaluate_every": count}
        data = spec["data"] | {"max_epochs": 200}  # it reads the little that there is again and again
        return spec | {"campaign": "on-racks-too", "training": training, "data": data}

    tenant = Tenant(seen.tenant.rehearsal, steps(100 * STEPS))
    driver = tenant.start("run", str(tenant.path), "--json")
    until(lambda: driver.poll() is not None or int(tenant.ask(_STEP)) >= KILL_AFTER, "it trains")
    assert driver.poll() is None, tenant.log.read_text()
    mended = tenant.folder / "mended.yaml"
    mended.write_text(yaml.safe_dump(steps(STEPS)))
    driver.send_signal(signal.SIGINT)
    driver.wait()
    tenant.run("relaunch", tenant.name, "--spec", str(mended), "--now", "--json")
    (relaunched,) = tenant.of_kind("relaunched")
    assert {row["field"] for row in relaunched["diff"]} == {"training.steps", "training.evaluate_every"}
    first, second = tenant.of_kind("attempt.launched")
    assert first["committed_step"] < second["committed_step"] < STEPS
    report = json.loads((tenant.results / "report.json").read_text())
    trained = {row["step"] for series in report["training"]["losses"] for row in series["points"]}
    # What the first attempt printed goes with its pods: nothing in such a cluster keeps it.
    assert trained >= set(range(second["committed_step"] + 1, STEPS + 1))
    (certified,) = tenant.of_kind("certified")
    assert certified["clean"]


def test_the_spec_has_at_most_25_lines(seen: Seen) -> None:
    """As the page shows it; this one says the same of a smaller job."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    spec = page.partition("```yaml\n")[2].partition("```")[0]
    assert "target: kubernetes" in spec and len(spec.splitlines()) <= 25
