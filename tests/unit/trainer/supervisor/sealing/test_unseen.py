"""A step that cannot be looked at now is neither unsound nor gone: limits and a storage that does not answer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.supervisor_tier import JobDisk, TwoNodes, put
from trainer.contract import sealed as sealed_rules
from trainer.contract.exits import limit_of
from trainer.contract.rows import rows_of
from trainer.supervisor import seal
from trainer.supervisor.sealing import listing, shared, survey
from trainer.supervisor.sealing.far import SharedFolder

LIMITS = (errno.ENOMEM, errno.EMFILE)
Refuse = Callable[..., list[str]]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(sealed_rules.time, "sleep", waited.append)
    return waited


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """A kernel that answers calls for files whose path has `part` in it with an error, `times` times."""

    def fail(number: int, part: str, times: int = 1_000, calls: tuple[str, ...] = ("open", "lstat")) -> list[str]:
        failed: list[str] = []

        def instead(real: Any) -> Any:
            def answer(path: Any, *rest: Any, **named: Any) -> Any:
                if not isinstance(path, int) and part in os.fspath(path) and len(failed) < times:
                    failed.append(os.fspath(path))
                    raise OSError(number, os.strerror(number), str(path))
                return real(path, *rest, **named)

            return answer

        for name in calls:
            monkeypatch.setattr(os, name, instead(getattr(os, name)))
        monkeypatch.setattr("io.open", instead(open))
        return failed

    return fail


@pytest.fixture
def sealed(disk: JobDisk) -> JobDisk:
    for step in (10, 20, 30):
        put(disk.own / f"step-{step}/state", f"state of {step}")
        disk.seal(f"step-{step}", step)
    return disk


@pytest.mark.parametrize("number", LIMITS)
@pytest.mark.parametrize("part", ["manifest.json", "-state"])
def test_a_limit_is_waited_for_and_says_nothing_of_a_step(
    number: int, part: str, sealed: JobDisk, refuse: Refuse, pauses: list[float]
) -> None:
    refuse(number, part)
    with pytest.raises(OSError) as raised:
        sealed.fault(30)
    assert raised.value.errno == number and limit_of(raised.value) and pauses == [1.0, 5.0, 15.0]


@pytest.mark.parametrize(("times", "fault"), [(2, ""), (4, "Input/output error")])
def test_a_storage_that_answers_again_has_lost_no_step(
    times: int, fault: str, sealed: JobDisk, refuse: Refuse, pauses: list[float]
) -> None:
    refuse(errno.EIO, "-state", times)
    assert fault in sealed.fault(30) and bool(sealed.fault(30)) is False
    assert pauses == [1.0, 5.0, 15.0][:times]


def test_what_the_files_say_is_waited_for_by_nobody(sealed: JobDisk, refuse: Refuse, pauses: list[float]) -> None:
    refuse(errno.EACCES, "-state")
    assert "Permission denied" in sealed.fault(30) and pauses == []


def test_a_step_that_cannot_be_looked_at_is_never_removed(sealed: JobDisk, refuse: Refuse) -> None:
    failed = refuse(errno.EIO, "step-00000020/manifest.json")
    assert seal.keep(sealed.tier, 2) == [] and failed, "it counts as none of the two, and it stays"
    assert seal.keep(sealed.tier, 1) == [10]
    assert sorted(seal.committed(sealed.tier)) == [20, 30]


def test_a_list_or_a_verdict_that_a_limit_stops_calls_no_step_damaged(sealed: JobDisk, refuse: Refuse) -> None:
    refuse(errno.EMFILE, "step-00000020/")
    for look in (
        lambda: rows_of(sealed.tier, "local", "tiny"),
        lambda: listing.verdict(sealed.tier, 20, "tiny", "n0"),
    ):
        with pytest.raises(OSError, match="Too many open files"):
            look()


def test_a_shard_whose_verdict_a_limit_stops_has_no_fault(sealed: JobDisk, refuse: Refuse) -> None:
    refuse(errno.EMFILE, "-state")
    with pytest.raises(OSError, match="Too many open files"):
        listing.verdict(sealed.tier, 20, "tiny", "n0")


def test_a_fetch_waits_for_the_shared_tier_and_takes_a_limit_for_no_fault(
    sealed: JobDisk, refuse: Refuse, pauses: list[float], tmp_path: Path
) -> None:
    (shard,) = [path for path in sealed.shards(30) if path.name.endswith("-state")]
    far, name = SharedFolder(sealed.tier), str(shard.relative_to(sealed.tier))
    expected = seal.digest_of(shard)
    failed = refuse(errno.EIO, f"tier/{name}", 2)
    assert far.fetch(name, tmp_path / "own/state", expected) == "" and len(failed) == 2 == len(pauses)
    assert (tmp_path / "own/state").read_text() == "state of 30"
    refuse(errno.EMFILE, f"tier/{name}")
    for ask in (lambda: far.fetch(name, tmp_path / "own/state", expected), lambda: far.digest(name)):
        with pytest.raises(OSError, match="Too many open files"):
            ask()


@pytest.mark.parametrize("number", LIMITS)
def test_a_limit_on_one_node_is_no_word_of_its_disks_steps(
    number: int, tmp_path: Path, refuse: Refuse, pauses: list[float]
) -> None:
    pair = TwoNodes(tmp_path)
    for rank in (0, 1):
        pair.put(rank, f"step-10/__{rank}_0.distcp")
    pair.put(0, "step-10/.metadata")
    assert pair.look(0, 1, 0, 1, 0) == [10]
    disks = pair.nodes[1].disks
    assert disks._manifest_of(10) and disks._made_whole(10) == ""
    refuse(number, f"node-1/tiny/step-{10:08d}/")
    for ask in (lambda: disks._manifest_of(10), lambda: disks._made_whole(10)):
        with pytest.raises(OSError, match=os.strerror(number)):
            ask()


def test_nothing_makes_way_for_a_step_but_for_want_of_room(sealed: JobDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    (sealing, *_), forgotten = sealed.begin(2), list[object]()
    monkeypatch.setattr(shared.formats, "forget_later", lambda *call: forgotten.append(call))

    def fail(number: int) -> None:
        def lay_back(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(shared.seal, "lay_back", lay_back)
        with pytest.raises(OSError, match=os.strerror(number)):
            sealing.lay(sealed.tier, 20)

    fail(errno.EIO)
    assert not forgotten
    fail(errno.ENOSPC)
    assert len(forgotten) == 1


def test_a_writers_digests_that_cannot_be_read_are_not_none(disk: JobDisk, refuse: Refuse) -> None:
    put(disk.own / f"step-10/{survey.DIGESTS}", '{"files": {}}'), put(disk.own / "step-10/a", "a")
    refuse(errno.EIO, f"step-10/{survey.DIGESTS}", calls=())
    with pytest.raises(OSError, match="Input/output error"):
        disk.seal("step-10", 10)
    assert seal.committed(disk.tier) == []
