"""A campaign in a cluster of somebody's: `bivouac run` with a tenant's rights alone, real ranks, and a node killed.

The campaign runs once; each test looks at one thing that it must have shown.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.campaign.rehearsal import until
from tests.root import ROOT
from tests.worlds.standing.campaign import KILL_AFTER, NODES, STEPS, Tenant, borrowed_nodes

pytestmark = [pytest.mark.nightly]


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
    folder = tmp_path_factory.mktemp("racks")
    with borrowed_nodes(folder, NODES + request.param) as (tenant, as_admin):
        before = as_admin("lend")
        run = tenant.start("run", str(tenant.path), "--json")
        killed = until(lambda: run.poll() is not None or tenant.kill(request.param), "the tenant's gang trains")
        assert run.wait() == 0, tenant.log.read_text()
        yield Seen(tenant, killed, before, as_admin("look"))


def test_the_gang_goes_on_on_spare_nodes_and_the_dead_are_left_out(seen: Seen) -> None:
    """Those that die at once are one end of an attempt, and one decision."""
    first, second = seen.tenant.of_kind("attempt.running")
    given_up = seen.tenant.of_kind("node.quarantined")
    assert {row["node"] for row in given_up} == set(seen.killed) and all(row["died"] for row in given_up)
    assert set(seen.killed) <= set(first["nodes"]) and not set(seen.killed) & set(second["nodes"])
    assert seen.tenant.of_kind("archive.verified")


def test_the_losses_equal_those_of_an_undisturbed_twin(seen: Seen, tmp_path: Path) -> None:
    twin, points = seen.tenant.twin(tmp_path / "twin"), seen.tenant.losses()
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
    until(lambda: driver.poll() is not None or tenant.step() >= KILL_AFTER, "it trains")
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
