"""The file system is deleted under a campaign that trains: a new one takes its place, and training goes on from S3."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.campaign.rehearsal import Rehearsal, quick, rehearsing, until
from tests.waiting import HUNG_S

pytestmark = pytest.mark.nightly

STEPS = 1500
SPEC = quick(STEPS, campaign="lost", checkpoint={"every_steps": 20, "archive_every": "5s"})
_FOUND = """
import boto3, json
fsx, eks = boto3.client("fsx"), boto3.client("eks")
systems = [one["FileSystemId"] for one in fsx.describe_file_systems()["FileSystems"] if one["Lifecycle"] == "AVAILABLE"]
made = [str(eks.describe_cluster(name=name)["cluster"]["createdAt"]) for name in eks.list_clusters()["clusters"]]
print(json.dumps([systems, made]))
"""
_LOSE = """
import boto3
fsx = boto3.client("fsx")
for one in fsx.describe_file_systems()["FileSystems"]:
    fsx.delete_file_system(FileSystemId=one["FileSystemId"])
"""


@dataclass
class Seen:
    rehearsal: Rehearsal
    before: list[Any]
    after: list[Any]
    """[file systems, when the clusters were made]."""
    copied: int
    repaired: subprocess.CompletedProcess[str]
    code: int
    """Exit code of the driver that went on to the end."""

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.rehearsal.events() if event["kind"] == kind]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with rehearsing(tmp_path_factory.mktemp("lost"), SPEC) as rehearsal:
        driver = rehearsal.start()

        def copies() -> list[int]:
            assert driver.poll() is None, rehearsal.log()
            return [e["data"]["step"] for e in rehearsal.events() if e["kind"] == "checkpoint.copied"]

        until(lambda: driver.poll() is not None or "\nsupervise " in rehearsal.log(), "it trains")
        copied = until(copies, "a copy is in S3")[-1]
        driver.send_signal(signal.SIGINT)
        driver.wait(timeout=HUNG_S)
        before = json.loads(rehearsal.python(_FOUND))
        rehearsal.python(_LOSE)
        repaired = rehearsal.run("repair", rehearsal.name, "--yes")
        after = json.loads(rehearsal.python(_FOUND)) if repaired.returncode == 0 else []
        code = rehearsal.start().wait(timeout=HUNG_S) if repaired.returncode == 0 else -1
        yield Seen(rehearsal, before, after, copied, repaired, code)


def test_a_new_file_system_takes_the_lost_ones_place_and_the_cluster_stays(seen: Seen) -> None:
    assert seen.repaired.returncode == 0, seen.repaired.stdout + seen.repaired.stderr
    (old,), clusters = seen.before
    (new,), same = seen.after
    assert new != old and same == clusters


def test_training_goes_on_from_the_newest_copy_and_the_golden_checkpoint_is_archived(seen: Seen) -> None:
    assert seen.code == 0, seen.rehearsal.log()
    (fetched,) = seen.events("checkpoint.fetched")
    assert fetched["step"] >= seen.copied and not fetched["refused"]
    launched = {event["attempt"]: event["committed_step"] for event in seen.events("attempt.launched")}
    assert launched[fetched["attempt"]] == fetched["step"]
    (archived,) = seen.events("archive.verified")
    assert archived["step"] == STEPS and archived["copies_left"] == 0
    assert [event["clean"] for event in seen.events("certified")][-1:] == [True]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rehearsal, int]]:
    """The driver stays, and nobody types anything: the rehearsal, and the driver's exit code.

    Attempts that find no file system are not what is tried here: they are as many as the minutes of the wait allow.
    """
    patient = {"attempts_without_progress": 1000, "process_restarts": 1000}
    with rehearsing(tmp_path_factory.mktemp("alone"), SPEC | {"campaign": "alone", "recovery": patient}) as rehearsal:
        driver = rehearsal.start()
        until(lambda: driver.poll() is not None or "\nsupervise " in rehearsal.log(), "it trains")
        until(lambda: driver.poll() is not None or kinds(rehearsal, "checkpoint.copied"), "a copy is in S3")
        assert driver.poll() is None, rehearsal.log()
        rehearsal.python(_LOSE)
        yield rehearsal, driver.wait(timeout=HUNG_S)


def kinds(rehearsal: Rehearsal, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in rehearsal.events() if event["kind"] == kind]


def test_a_driver_that_watches_makes_it_again_by_itself_and_the_campaign_ends_as_planned(
    alone: tuple[Rehearsal, int],
) -> None:
    rehearsal, code = alone
    assert code == 0, rehearsal.log()
    (lost,) = kinds(rehearsal, "file-system.lost")
    assert lost["repair"] and lost["word"] == "does not exist" and "USD/h bill" in lost["why"]
    assert len(kinds(rehearsal, "file-system.replaced")) == 1
    (fetched,) = kinds(rehearsal, "checkpoint.fetched")
    assert fetched["step"] >= lost["copied"]
    (archived,) = kinds(rehearsal, "archive.verified")
    assert archived["step"] == STEPS
    assert [kind["clean"] for kind in kinds(rehearsal, "certified")][-1:] == [True]
