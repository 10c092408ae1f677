"""A driver makes a lost file system again only when AWS says for long enough that it is gone, and within bounds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.campaign.repairs import lost_storage
from infra.campaign.repairs.lost_storage import MOST, FileSystemLoss, StorageWatch, refusal_reason
from infra.engine.drift import Row, StackLook
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.checkpoints import CheckpointCopied
from infra.record.payloads.stages import StageStarted
from infra.record.payloads.training import FileSystemLost, FileSystemReplaced, TrainingFinished
from infra.record.store import CampaignStore
from infra.spec import waits
from tests.unit.record.cost_lines import lines
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time

FS = "fs-0123456789abcdef0"
BELIEVED_S = waits.LOST_FILE_SYSTEM.seconds
GONE = "FileSystemNotFound"
Word = str | None
"""What FSx answers: a lifecycle, the code of a refusal, or None for no answer at all."""


class Fsx:
    def __init__(self, word: Word = "AVAILABLE") -> None:
        self.word, self.deleted = word, list[str]()
        self.exceptions = SimpleNamespace(FileSystemNotFound=ClientError)

    def describe_file_systems(self, FileSystemIds: list[str]) -> dict[str, Any]:
        if self.word is None:
            raise EndpointConnectionError(endpoint_url="https://fsx")
        if self.word.isupper():
            found = {"FileSystemId": FileSystemIds[0], "Lifecycle": self.word}
            return {"FileSystems": [found | {"FailureDetails": {"Message": "a disk"}}]}
        raise ClientError({"Error": {"Code": self.word, "Message": "no"}}, "DescribeFileSystems")

    def delete_file_system(self, FileSystemId: str) -> None:
        if self.word == GONE:
            self.describe_file_systems([FileSystemId])
        self.deleted.append(FileSystemId)
        self.word = GONE


def account(fsx: Fsx) -> Any:
    return SimpleNamespace(client={"fsx": fsx}.__getitem__)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (GONE, "does not exist"),
        ("FAILED", "has FAILED (a disk)"),
        *((word, "") for word in ("AVAILABLE", "UPDATING", "MISCONFIGURED_UNAVAILABLE", "DELETING", "CREATING")),
        *((word, "") for word in ("AccessDeniedException", "ThrottlingException", "InternalServerError", None)),
    ],
)
def test_only_a_file_system_that_aws_calls_gone_or_failed_is_lost_and_only_after_a_while(word: Word, said: str) -> None:
    loss = FileSystemLoss(account(Fsx(word)), FS)
    assert loss.look(1000.0) == (said, False)
    assert loss.look(1000.0 + BELIEVED_S - 1) == (said, False)
    assert loss.look(1000.0 + BELIEVED_S) == (said, bool(said))


@pytest.mark.parametrize("between", ["AVAILABLE", "AccessDeniedException", "ThrottlingException", None])
def test_any_other_answer_in_between_begins_the_wait_anew(between: Word) -> None:
    fsx = Fsx(GONE)
    loss = FileSystemLoss(account(fsx), FS)
    loss.look(0.0)
    fsx.word = between
    loss.look(BELIEVED_S / 2)
    fsx.word = GONE
    assert loss.look(BELIEVED_S) == ("does not exist", False)
    assert loss.look(2 * BELIEVED_S) == ("does not exist", True)


def row(kind: str, verb: str = "create", name: str = "shared") -> Row:
    return Row(f"urn:pulumi:s::p::{kind}::{name}", verb)


ITS = (
    row("aws:fsx/lustreFileSystem:LustreFileSystem"),
    row("aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation", name="data"),
    row("kubernetes:core/v1:PersistentVolume", "replace"),
    row("kubernetes:core/v1:PersistentVolumeClaim", "replace"),
)


class StorageLoss:
    """A campaign that trains, its stored state, and the repair as a list of what was done."""

    def __init__(self, patch: pytest.MonkeyPatch, copied: int | None = 40) -> None:
        s3: Any = FakeS3(Time())
        self.store = CampaignStore(s3, "state", "train", "driver", now=lambda: datetime.now(UTC))
        self.store.append(StageStarted(stage="provision"))
        self.store.append(AttemptLaunched(attempt=1, committed_step=-1))
        if copied is not None:
            self.store.append(CheckpointCopied(step=copied))
        self.fsx, self.clock, self.notes, self.done = Fsx(GONE), 0.0, list[str](), list[tuple[Row, ...]]()
        self.planned: tuple[Row, ...] = ITS
        self.context: Any = SimpleNamespace(
            store=self.store, state=self.store.state, account=account(self.fsx), guard=lambda: None,
            names=SimpleNamespace(stack="campaign-train"), deadline=datetime.now(UTC) + timedelta(hours=9),
            spec=SimpleNamespace(campaign="train", money=SimpleNamespace(budget_usd=1000)),
            plan=SimpleNamespace(cost=lines(3, 27)),
            progress=SilentProgress(self.notes),
            turns=lambda seconds, interval: range(5),
        )  # fmt: skip
        patch.setattr(lost_storage, "id_of", lambda store, stack: FS)
        patch.setattr(lost_storage, "tell", lambda context, cost: None)
        patch.setattr(lost_storage, "look_at_stacks", self.looked)
        patch.setattr(lost_storage, "carry_out", self.carry_out)
        patch.setattr(lost_storage, "recorded_config", lambda store, version: None)
        patch.setattr(lost_storage.time, "monotonic", lambda: self.clock)

    def looked(self, context: Any, only: set[str]) -> tuple[StackLook, ...]:
        assert only == {"campaign-train"}
        return (StackLook("campaign-train", planned=self.planned if self.fsx.word == GONE else ()),)

    def carry_out(self, context: Any, looks: tuple[StackLook, ...]) -> None:
        self.done.append(looks[0].planned)
        self.fsx.word = "AVAILABLE"
        self.store.append(FileSystemReplaced())

    def watched(self, watch: StorageWatch | None = None, until_s: float = 2 * BELIEVED_S) -> str:
        """The last message of a driver that watches for so long."""
        watch, said = watch or StorageWatch(self.context), ""
        end = self.clock + until_s
        while self.clock < end:
            said = watch.look()
            self.clock += 5.0
        return said

    def lost(self) -> list[dict[str, Any]]:
        return [event.data for event in self.store.events() if event.kind == "file-system.lost"]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> StorageLoss:
    return StorageLoss(monkeypatch)


def test_a_lost_file_system_is_made_again_and_the_record_says_what_it_costs(world: StorageLoss) -> None:
    watch = StorageWatch(world.context)
    assert world.watched(watch, BELIEVED_S - 10) == f"FSx says that file system {FS} does not exist"
    assert not world.lost() and not world.done
    assert world.watched(watch) == ""
    assert world.done == [ITS] and not world.fsx.deleted
    (told,) = world.lost()
    assert (told["id"], told["word"], told["repair"], told["copied"]) == (FS, "does not exist", True, 40)
    # 40 minutes at most of 30 USD/h.
    assert "10 to 30 min, while 30.00 USD/h bill, at most 20.00 USD; training goes on from step 40" in told["why"]
    assert world.store.state().lost is None and world.store.state().replacements == 1


def test_one_that_failed_is_deleted_before_it_is_made_again(world: StorageLoss) -> None:
    world.fsx.word = "FAILED"
    world.watched()
    assert world.fsx.deleted == [FS] and world.done == [ITS]


def test_what_aws_does_not_call_lost_is_never_touched(world: StorageLoss) -> None:
    for word in ("AVAILABLE", "AccessDeniedException", "ThrottlingException", None):
        world.fsx.word = word
        assert world.watched() == ""
    assert not world.lost() and not world.done


def test_a_repair_that_a_killed_driver_began_is_carried_on_by_the_next_at_once(world: StorageLoss) -> None:
    why = {"word": "does not exist", "copied": 40, "why": "x"}
    world.store.append(FileSystemLost(id=FS, repair=True, **why))
    world.fsx.word = "AVAILABLE"  # it was made, and the steward not started
    StorageWatch(world.context).look()
    assert len(world.done) == 1 and world.store.state().lost is None


def test_a_repair_killed_after_the_failed_one_was_deleted_goes_on_without_it(world: StorageLoss) -> None:
    world.store.append(FileSystemLost(id=FS, repair=True, word="has FAILED", copied=40, why="x"))
    StorageWatch(world.context).look()
    assert world.done == [ITS] and not world.fsx.deleted


def ends(world: StorageLoss) -> None:
    world.context.deadline = datetime.now(UTC) + timedelta(minutes=39)


def poor(world: StorageLoss) -> None:
    world.context.spec.money.budget_usd = 1


def changed_by_hand(world: StorageLoss) -> None:
    world.planned = (*ITS, row("aws:ec2/subnet:Subnet", "update", "gpu"))


def lost_twice(world: StorageLoss) -> None:
    for _ in range(MOST):
        world.store.append(FileSystemLost(id="fs-x", word="", copied=40, repair=True, why=""))
        world.store.append(FileSystemReplaced())


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        (ends, "leaves no time for it, an interval and the archive"),
        (poor, "of 1 USD are spent"),
        (changed_by_hand, "Subnet gpu was changed by hand too"),
        (lost_twice, "2 were made again already"),
    ],
)
def test_where_it_is_not_safe_nothing_is_made_and_people_are_told_once(
    world: StorageLoss, trouble: Callable[[StorageLoss], None], why: str
) -> None:
    trouble(world)
    before, watch = len(world.lost()), StorageWatch(world.context)
    said = world.watched(watch, 4 * BELIEVED_S)
    assert why in said and not world.done
    (told,) = world.lost()[before:]
    assert told["repair"] is False and why in told["why"] and any(why in note for note in world.notes)
    world.watched(StorageWatch(world.context), 4 * BELIEVED_S)
    assert len(world.lost()) == before + 1, "the next driver has nothing new to tell"


def test_without_a_copy_a_new_one_would_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StorageLoss(monkeypatch, copied=None)
    assert "S3 has no interval copy" in world.watched() and not world.done


def test_the_bounds_hold_an_interval_and_the_archive_too(world: StorageLoss, monkeypatch: pytest.MonkeyPatch) -> None:
    state, now = world.store.state(), datetime.now(UTC)
    world.context.deadline = now + timedelta(minutes=waits.FILE_SYSTEM.minutes + 30)
    assert refusal_reason(world.context, state, now) == ""
    config = SimpleNamespace(interval_and_archive=timedelta(minutes=31))
    monkeypatch.setattr(lost_storage, "recorded_config", lambda store, version: config)
    assert "leaves no time" in refusal_reason(world.context, state, now)


def test_nothing_is_made_again_before_training_or_after_it(world: StorageLoss) -> None:
    world.store.append(TrainingFinished(outcome="stopped", why="", committed_step=None))
    assert world.watched() == "" and not world.lost()
