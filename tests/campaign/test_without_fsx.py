"""A campaign without a shared file system: a node dies, its shards come back from S3, and FSx is asked for nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.data import dataset
from infra.spec.campaign import Spec
from tests.campaign.rehearsal import Rehearsal, quick, rehearsing, until
from tests.trainer.agents import World, run
from tests.waiting import HUNG_S
from trainer.contract import TrainConfig

pytestmark = pytest.mark.nightly

STEPS, EVERY, KILL_AFTER = 60, 10, 25
SPEC = quick(
    STEPS,
    campaign="nofsx",
    storage={"shared": "none"},
    training={"evaluate_every": 30, "step_seconds_estimate": 0.3},
    # No neighbour keeps a lost node's shards: they come from S3 or from nowhere.
    checkpoint={"every_steps": EVERY, "neighbour": False},
    rehearsal={"faults": [{"kill_node": 1, "after_step": KILL_AFTER}]},
)
_FAULTS = """
import json, os, urllib.request
request = urllib.request.Request(os.environ["AWS_ENDPOINT_URL"] + "/_site/faults", data=json.dumps({asked}).encode())
print(urllib.request.urlopen(request).read().decode())
"""
_CHANGES = ["Create*", "Update*", "Delete*", "Tag*"]
_REFUSED = {"add": [{"service": "fsx", "action": one, "times": None, "code": "AccessDenied"} for one in _CHANGES]}
_LEFT = """
import boto3
s3, found = boto3.client("s3"), 0
for page in s3.get_paginator("list_object_versions").paginate(
    Bucket="bivouac-archive-123456789012-us-east-1", Prefix="copies/"
):
    found += len(page.get("Versions", ())) + len(page.get("DeleteMarkers", ()))
print(found)
"""


@dataclass
class Seen:
    rehearsal: Rehearsal
    code: int
    events: list[dict[str, Any]]
    changes_of_fsx: list[int]
    """Calls by pattern of their names."""
    left: int
    """Versions and markers of checkpoints below `copies/`, when all is over."""

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["kind"] == kind]

    def logged(self, attempt: int) -> list[dict[str, Any]]:
        """What the pods of an attempt said, from the logs in the archive."""
        found = []
        for path in self.rehearsal.archived("record/logs").glob(f"*-a{attempt}-gang-0-*.log"):
            found += [json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"event"')]
        return found

    def losses(self, attempt: int) -> dict[int, float]:
        return {event["step"]: event["loss"] for event in self.logged(attempt) if event["event"] == "step"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with rehearsing(tmp_path_factory.mktemp("nofsx"), SPEC) as rehearsal:
        driver = rehearsal.start()
        until(lambda: driver.poll() is not None or "\nbake " in rehearsal.log(), "the site's AWS answers")
        assert driver.poll() is None, rehearsal.log()
        rehearsal.python(_FAULTS.format(asked=_REFUSED))
        code = driver.wait(timeout=HUNG_S)
        rules = json.loads(rehearsal.python(_FAULTS.format(asked={})))["rules"]
        changes = [rule["hits"] for rule in rules if rule["service"] == "fsx"]
        events, left = rehearsal.events(), int(rehearsal.python(_LEFT))
        struck = rehearsal.run("down", "--all", "--yes")  # exports the archive
        assert struck.returncode == 0, struck.stderr
        yield Seen(rehearsal, code, events, changes, left)


def test_the_campaign_ends_well_and_its_certificate_is_clean(seen: Seen) -> None:
    assert seen.code == 0, seen.rehearsal.log()
    assert [one["clean"] for one in seen.of_kind("certified")][-1:] == [True]


def test_fsx_was_asked_to_make_nothing(seen: Seen) -> None:
    assert seen.changes_of_fsx == [0] * len(_CHANGES)


def test_the_new_nodes_shards_came_from_s3(seen: Seen) -> None:
    assert [one["failure"] for one in seen.of_kind("attempt.ended")] == ["node", None]
    ended, second = seen.of_kind("attempt.ended")[0], seen.of_kind("attempt.launched")[1]
    assert second["committed_step"] >= ended["committed_at_end"] >= EVERY
    downloaded = [event for event in seen.logged(2) if event["event"] == "downloaded_shard"]
    assert {event["step"] for event in downloaded} == {second["committed_step"]}


def test_the_loss_equals_an_undisturbed_twins_bit_for_bit(seen: Seen, tmp_path: Path) -> None:
    config = TrainConfig.model_validate_json(seen.rehearsal.archived("train.json").read_text())
    assert config.shared_tier.startswith("s3://") and config.data.stream_from.startswith("s3://")
    folders = {"shared_tier": "", "data": config.data.model_copy(update={"stream_from": ""})}
    data = dataset.prepare(Spec.model_validate(seen.rehearsal.spec), lambda _: None)
    world = World(tmp_path / "twin", data.folder, config.model_copy(update=folders))
    world.root.mkdir()
    twin = run(world, 1).losses()
    first, second = seen.losses(1), seen.losses(2)
    assert max(second) == STEPS and len(twin) == STEPS
    assert first | second == twin
    repeated = set(first) & set(second)
    assert repeated and all(first[step] == second[step] for step in repeated)


def test_the_golden_checkpoint_is_archived_and_the_checkpoints_in_s3_are_gone(seen: Seen) -> None:
    (archived,) = seen.of_kind("archive.verified")
    assert archived["step"] == STEPS and archived["copies_left"] == 0 and seen.left == 0
    assert archived["restored_evaluation_loss"] == archived["recorded_evaluation_loss"] is not None
