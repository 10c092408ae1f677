"""What the steward notes for the campaigns that come after."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from infra.record.payloads.attempts import NodeVerdict
from infra.steward.foresight import memory
from tests.fake_cluster import gpu_node
from tests.unit.steward.steward_story import StewardRun, story
from tests.unit.steward.test_decide import node
from tests.worlds.s3 import FakeS3, refusal

__all__ = ["story"]
FOLDER = "foundation/faults/story/"


def kill_a_node(story: StewardRun) -> None:
    start = story.time()

    def kill() -> None:
        if story.time() - start > 120 and not story.events("attempt.ended"):
            story.steps = {0: 20}
            story.cluster.nodes["node-1"] = gpu_node(1, "Unknown")

    story.run(5, kill)


def notes(story: StewardRun) -> dict[str, Any]:
    keys = [key for key in story.s3.objects if key.startswith(FOLDER)]
    return {key.removeprefix(FOLDER): json.loads(story.s3.objects[key][0]) for key in keys}


def test_a_dead_node_is_noted_with_the_hardware_that_its_health_check_read(story: StewardRun) -> None:
    story.store().append(NodeVerdict(node="node-1", instance="i-1", hardware=("GPU-1",)))
    story.store().append(NodeVerdict(node="node-0", instance="i-0", hardware=("GPU-0",)))
    kill_a_node(story)
    note = notes(story)["i-1.json"]
    assert (note["campaign"], note["node"], note["hardware"]) == ("story", "node-1", ["GPU-1"])
    assert story.events("node.quarantined")[0].data["reason"] == note["reason"] and list(notes(story)) == ["i-1.json"]


def test_a_memory_that_takes_no_note_stops_no_repair(story: StewardRun, monkeypatch: pytest.MonkeyPatch) -> None:
    put = FakeS3.put_object

    def refuse(s3: FakeS3, **request: Any) -> Any:
        if request["Key"].startswith("foundation/"):
            raise refusal("AccessDenied", 403)
        return put(s3, **request)

    monkeypatch.setattr(FakeS3, "put_object", refuse)
    kill_a_node(story)
    assert notes(story) == {} and story.aws.ended == ["i-1"]


def test_a_node_that_the_cloud_takes_is_no_fault_of_its_hardware(story: StewardRun) -> None:
    due = story.time.wall().replace(microsecond=0)
    story.aws.events = {"i-1": [{"Code": "instance-retirement", "NotBefore": due, "Description": "x"}]}
    story.run(5)
    assert story.aws.ended == ["i-1"] and notes(story) == {}


def test_a_dead_node_is_noted_though_the_cloud_announces_it_for_next_week(story: StewardRun) -> None:
    due = story.time.wall().replace(microsecond=0) + timedelta(days=7)
    story.aws.events = {"i-1": [{"Code": "instance-retirement", "NotBefore": due, "Description": "x"}]}
    kill_a_node(story)
    assert list(notes(story)) == ["i-1.json"] and "retirement" not in notes(story)["i-1.json"]["reason"]


@pytest.mark.parametrize(
    ("reason", "is_noted"),
    [
        ("its GPUs correct ever more memory errors: 900 within 21 minutes", True),
        ("heat lowers the clocks of a GPU: in 66 % of the last 21 minutes", True),
        ("a rank of it becomes slower: 1.30 of the median's time, 1.00 at the beginning of the last 21 minutes", True),
        ("the local disk is full in about 3 minutes: 4 % are free", False),
        ("/dev/shm is full in about 9 minutes: 12 % are free", False),
    ],
)
def test_of_declines_those_of_hardware_are_noted(story: StewardRun, reason: str, is_noted: bool) -> None:
    story.run(1)
    assert story.steward is not None
    view = node(1, decline=reason)
    memory.note_node(story.steward, view, reason, story.time.wall())
    assert bool(notes(story)) is is_noted
