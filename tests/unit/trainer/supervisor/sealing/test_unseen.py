"""A step that cannot be looked at now is neither unsound nor gone: limits and a storage that does not answer."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.refusing_kernel import Refuse
from tests.worlds.supervisor_tier import JobDisk, JobNode, TwoNodes, put
from trainer.contract.exits import limit_of
from trainer.contract.rows import rows_of
from trainer.supervisor import accounting, seal
from trainer.supervisor.sealing import listing, shared, survey
from trainer.supervisor.sealing.far import SharedFolder

LIMITS = (errno.ENOMEM, errno.EMFILE)


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


def test_a_dead_disk_is_waited_for_once_and_not_for_each_file(
    disk: JobDisk, refuse: Refuse, pauses: list[float]
) -> None:
    for number in range(40):
        put(disk.own / f"step-10/{number}-state", str(number))
    disk.seal("step-10", 10)
    refuse(errno.EIO, "-state")
    assert "Input/output error" in disk.fault()
    assert 3 <= len(pauses) <= 3 * 4, "by each of the threads that read side by side"


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


def test_a_folder_that_cannot_be_read_counts_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, listing = JobNode(tmp_path, "client"), accounting.tree.listing
    put(node.own / "secret/model.pt")

    def refuse(folder: Path) -> Any:
        if folder.name == "secret":
            raise PermissionError(13, "Permission denied", str(folder))
        return listing(folder)

    monkeypatch.setattr(accounting.tree, "listing", refuse)
    account = node.end()
    assert (account.files, account.bytes, account.newest_at, account.entries) == (1, 0, 0.0, ("secret",))


def test_a_file_whose_time_cannot_be_seen_is_not_an_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    assert accounting._written_at([tmp_path / "a"]) > 0 and accounting._written_at([tmp_path / "gone"]) == 0.0
    real = os.stat

    def refuse(path: Any, **how: Any) -> os.stat_result:
        if str(path).endswith("/a"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path, **how)

    monkeypatch.setattr(accounting.find, "files_of", lambda path: [path])
    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        accounting._written_at([tmp_path / "a"])
