"""The fence alone: who raises it, what it reads, and what makes way for it on a full tier."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import manifest_of
from trainer.builtin.checkpoint import fence, room
from trainer.builtin.checkpoint.fence import check_fence, claim, newest_attempt, raise_fence
from trainer.builtin.checkpoint.tiers import Tier
from trainer.errors import Fenced, OutOfFiles, OutOfMemory, StorageError


def names(root: Path) -> list[str]:
    return sorted(os.listdir(root / "fence"))


def fail_once(monkeypatch: pytest.MonkeyPatch, number: int, times: int = 1) -> None:
    """The kernel answers the making of a fence's file with an error."""
    real, left = os.open, [times]

    def failing(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_EXCL and left[0] and Path(path).parent.name == "fence":
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", failing)


def test_a_claim_makes_the_fence_of_this_attempt(tmp_path: Path) -> None:
    claim(Tier("shared", tmp_path / "tiny"), 3)
    assert names(tmp_path / "tiny") == ["attempt-0003"] and newest_attempt(tmp_path / "tiny") == 3


def test_on_a_full_tier_half_done_work_makes_way_for_the_fence_and_no_commit_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, told = Tier("shared", tmp_path / "tiny"), list[dict[str, Any]]()
    (tier.folder(10) / "attempt-0001").mkdir(parents=True)
    tier.publish(manifest_of(10), 1)
    (tier.folder(20) / "attempt-0001").mkdir(parents=True)
    (tier.folder(20) / "attempt-0003").mkdir(parents=True)
    monkeypatch.setattr(room, "emit", lambda event, **fields: told.append({"event": event, **fields}))
    fail_once(monkeypatch, errno.ENOSPC)
    claim(tier, 2)
    assert names(tier.root) == ["attempt-0002"]
    assert [each["dropped"] for each in told] == [["step-00000020/attempt-0001"]]
    assert [path.name for path in tier.folder(20).iterdir()] == ["attempt-0003"], "a newer attempt's"
    assert (tier.folder(10) / "attempt-0001").exists() and [m.step for m in tier.committed()] == [10]


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EIO, StorageError), (errno.ENOMEM, OutOfMemory), (errno.EMFILE, OutOfFiles)]
)
def test_a_fence_that_cannot_be_read_is_the_storages_unless_a_limit_refused_it(
    number: int, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> list[str]:
        raise OSError(number, "refused", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(error, match="fence: refused"):
        check_fence(tmp_path, 3)


def test_a_tier_that_stays_full_is_told_as_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(monkeypatch, errno.ENOSPC, times=2)
    with pytest.raises(StorageError, match="the shared tier is full"):
        claim(Tier("shared", tmp_path / "tiny"), 2)


def test_any_other_trouble_with_the_fence_ends_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(monkeypatch, errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        raise_fence(tmp_path, 2)


def test_an_attempt_may_raise_its_fence_again(tmp_path: Path) -> None:
    raise_fence(tmp_path, 2)
    raise_fence(tmp_path, 2)
    assert names(tmp_path) == ["attempt-0002"]


def test_an_older_attempt_leaves_no_trace_in_the_fence(tmp_path: Path) -> None:
    raise_fence(tmp_path, 5)
    with pytest.raises(Fenced, match="attempt 4, fence at 5"):
        raise_fence(tmp_path, 4)
    assert names(tmp_path) == ["attempt-0005"]


def test_of_two_attempts_that_start_together_the_older_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = fence.sync_folder, list[str]()

    def overtaken(path: Path) -> None:
        real(path)
        synced.append(path.name)
        (path / "attempt-0009").touch()

    monkeypatch.setattr(fence, "sync_folder", overtaken)
    with pytest.raises(Fenced, match="fence at 9"):
        raise_fence(tmp_path, 8)
    assert synced == ["fence"], "the fence was not made durable"
    assert names(tmp_path) == ["attempt-0008", "attempt-0009"]


def test_everyone_may_read_the_fence_and_its_owner_alone_writes_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        raise_fence(tmp_path, 1)
    finally:
        os.umask(before)
    assert (tmp_path / "fence" / "attempt-0001").stat().st_mode & 0o7777 == 0o644


def test_before_the_first_attempt_the_fence_is_below_every_number(tmp_path: Path) -> None:
    assert newest_attempt(tmp_path) == -1
    (tmp_path / "fence").mkdir()
    assert newest_attempt(tmp_path) == -1
    check_fence(tmp_path, 0)


def test_the_highest_attempt_is_the_newest_and_what_is_no_attempt_does_not_count(tmp_path: Path) -> None:
    for name in ("attempt-0002", "attempt-0010", "attempt-0009", "attempt-", "attempt-x", ".nfs0001", "attempt-10000"):
        (tmp_path / "fence" / name).mkdir(parents=True)
    assert newest_attempt(tmp_path) == 10_000
    check_fence(tmp_path, 10_000)
    with pytest.raises(Fenced):
        check_fence(tmp_path, 9_999)


def test_an_unreadable_fence_is_told_with_its_place_and_no_mistake_of_ours_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fence").write_text("")
    with pytest.raises(StorageError, match=f"cannot be read.*{tmp_path}/fence: Not a directory"):
        check_fence(tmp_path, 1)

    def fail(path: Path) -> list[str]:
        raise KeyError(path)

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(KeyError):
        newest_attempt(tmp_path)
