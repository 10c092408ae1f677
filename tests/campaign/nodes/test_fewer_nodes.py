"""A gang of three nodes loses one while EC2 has none left, goes on with two, and grows again once there is another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.campaign.rehearsal import Rehearsal, quick, rehearsing, until
from trainer.contract import Manifest

pytestmark = pytest.mark.nightly
STEPS = 1200
LIMIT = 1e-3
"""Largest relative difference of a step's loss from the undisturbed twin's, in float32. The same sequences are summed
by two ranks in place of three for some hundred steps: each sum rounds in another order, by about 1e-7 of itself, and
training carries the difference on. Bits cannot be equal."""
SPEC = quick(
    STEPS,
    campaign="fewer",
    money={"budget_usd": 300},
    nodes={"count": 3},
    training={"global_batch": 12, "micro_batch": 2},
    recovery={"min_nodes": 2, "spare_timeout": "10s"},
)


def ask_site(rehearsal: Rehearsal, route: str, body: dict[str, Any]) -> None:
    done = rehearsal.inside("sh", "-c", f"curl -sSf -d '{json.dumps(body)}' \"$AWS_ENDPOINT_URL/_site/{route}\"")
    assert done.returncode == 0, done.stdout + done.stderr


def payloads(rehearsal: Rehearsal, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in rehearsal.events() if event["kind"] == kind]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    with rehearsing(tmp_path_factory.mktemp("fewer"), SPEC) as rehearsal:
        driver = rehearsal.start()
        until(lambda: driver.poll() is not None or rehearsal.step() >= 30, "training is under way")
        assert driver.poll() is None, rehearsal.log()
        live = rehearsal.status()["live"]
        last = max(live["pods"], key=lambda pod: int(pod["index"]))["node"]
        instance = next(node["instance"] for node in live["nodes"] if node["name"] == last)
        ask_site(rehearsal, "capacity", {"add": [{"node_group": "*", "instance_type": "p*", "places": 1}]})
        ask_site(rehearsal, f"kill?instance={instance}", {})
        until(lambda: driver.poll() is not None or payloads(rehearsal, "gang.resized"), "the gang is smaller")
        assert driver.poll() is None, rehearsal.log()
        ask_site(rehearsal, "capacity", {"clear": True})
        driver.wait()
        assert driver.returncode == 0, rehearsal.log()
        yield rehearsal


def test_it_goes_on_with_two_nodes_and_ends_with_three(ended: Rehearsal) -> None:
    sizes = [(row["previous_nodes"], row["nodes"], row["of"]) for row in payloads(ended, "gang.resized")]
    assert sizes == [(3, 2, 3), (2, 3, 3)], ended.log()
    assert [row.get("nodes", 0) for row in payloads(ended, "attempt.launched")] == [0, 2, 0]
    assert [len(row["nodes"]) for row in payloads(ended, "attempt.running")] == [3, 2, 3]
    first, second, last = payloads(ended, "attempt.ended")
    assert (first["failure"], second["failure"], second["grows_to"]) == ("node", "interrupted", 3)
    assert last.get("failure") is None and last["committed_at_end"] == STEPS
    reshaped = [
        json.loads(line[line.index("{") :])
        for attempt in ("2", "3")
        for line in ended.run("logs", "fewer", "--attempt", attempt, "--raw").stdout.splitlines()
        if '"event": "reshaped"' in line
    ]
    assert [(row["from_ranks"], row["to_ranks"]) for row in reshaped] == [(3, 2), (2, 3)]
    (finished,) = payloads(ended, "training.finished")
    assert finished["outcome"] == "done"


def test_two_nodes_bill_while_two_train(ended: Rehearsal) -> None:
    counted = [
        (event["kind"], event["data"].get("nodes"))
        for event in ended.events()
        if event["kind"] in ("nodes.counted", "gang.resized")
    ]
    smaller = counted.index(("gang.resized", 2))
    assert ("nodes.counted", 2) in counted[:smaller], counted
    assert ("nodes.counted", 3) in counted[smaller:], counted


def test_it_reads_the_data_of_an_undisturbed_twin_in_the_same_order_to_the_same_losses(ended: Rehearsal) -> None:
    twin = {**ended.spec, "campaign": "fewer-twin", "recovery": {"heartbeat_timeout": "5s"}}
    path = ended.folder / "twin.yaml"
    path.write_text(yaml.safe_dump(twin))
    done = ended.run("run", str(path), "--json", timeout=3600.0)
    assert done.returncode == 0, done.stdout + done.stderr
    struck = ended.run("down", "--all", "--yes")
    assert struck.returncode == 0, struck.stdout + struck.stderr
    results = {"fewer": ended.results, "fewer-twin": ended.results.parent / "fewer-twin"}
    golden = {}
    for name, folder in results.items():
        (found,) = (folder / "archive").glob("*/golden/**/manifest.json")
        golden[name] = Manifest.model_validate_json(found.read_bytes())
    rows = {name: manifest.consumed for name, manifest in golden.items()}
    assert [row.world_size for row in rows["fewer"]] == [3, 2, 3] and len(rows["fewer-twin"]) == 1
    assert rows["fewer"][-1].chain == rows["fewer-twin"][-1].chain, "each step has had the same sequences"
    losses = {}
    for name, folder in results.items():
        report = json.loads((folder / "report.json").read_text())
        points = [row for series in report["training"]["losses"] for row in series["points"]]
        losses[name] = {row["step"]: row["loss"] for row in points}
    steps = losses["fewer"].keys() & losses["fewer-twin"].keys()
    assert len(steps) > 20
    for step in steps:
        assert losses["fewer"][step] == pytest.approx(losses["fewer-twin"][step], rel=LIMIT), step
    widest = max(abs(losses["fewer"][step] / losses["fewer-twin"][step] - 1) for step in steps)
    print(f"{len(steps)} steps compared; the widest relative difference of a loss is {widest:.2g}")
    assert golden["fewer"].evaluation_loss == pytest.approx(golden["fewer-twin"].evaluation_loss, rel=LIMIT)
