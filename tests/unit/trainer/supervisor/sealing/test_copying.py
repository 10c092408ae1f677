"""A copy is whole whatever the disk takes at a time, durable where that is asked, and shares blocks where it can."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from trainer.supervisor.sealing import copying

CONTENT = os.urandom(5 * 2**20 + 4321)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


def test_a_disk_that_takes_a_part_at_a_time_gets_every_byte(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(copying, "_set_direct", lambda file, direct: False)  # parts are not whole pages
    monkeypatch.setattr(os, "pwrite", lambda file, part, offset: pwrite(file, part[:100_003], offset))
    assert copying.copy(source, tmp_path / "copy") == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert (tmp_path / "copy").read_bytes() == CONTENT


@pytest.mark.parametrize(("code", "is_passed"), [(errno.EINVAL, True), (errno.ENOSPC, False)])
def test_only_a_refusal_of_direct_writing_is_tried_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_passed: bool
) -> None:
    """The first write fails; switching direct writing off is what a try again needs."""
    pwrite, refusals, switches = os.pwrite, [code], list[bool]()

    def refuses_once(file: int, part: Any, offset: int) -> int:
        if refusals:
            raise OSError(refusals.pop(), "refused")
        return pwrite(file, part, offset)

    def switch(file: int, direct: bool) -> bool:
        switches.append(direct)
        return True

    monkeypatch.setattr(copying, "_set_direct", switch)
    monkeypatch.setattr(os, "pwrite", refuses_once)
    if is_passed:
        copying.copy(source, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == CONTENT and switches[:2] == [True, False]
        return
    with pytest.raises(OSError, match="refused"):
        copying.copy(source, tmp_path / "copy")
    assert not (tmp_path / "copy").exists(), "half a copy is none"


def test_a_refusal_that_switching_does_not_help_ends_the_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> int:
        raise OSError(errno.EINVAL, "refused")

    monkeypatch.setattr(copying, "_set_direct", lambda file, direct: False)
    monkeypatch.setattr(os, "pwrite", refuses)
    with pytest.raises(OSError, match="refused"):
        copying.copy(source, tmp_path / "copy")


def test_shared_blocks_are_read_back_and_not_written_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clones(file: int, request: int, other: int) -> int:
        assert request == (1 << 30) | (4 << 16) | (0x94 << 8) | 9, "_IOW(0x94, 9, int) of <linux/fs.h>"
        os.pwrite(file, CONTENT, 0)  # what the file system would do with blocks
        return 0

    monkeypatch.setattr(copying.fcntl, "ioctl", clones)
    monkeypatch.setattr(copying, "_write", lambda *_: pytest.fail("its blocks are there"))
    assert copying.copy(source, tmp_path / "copy") == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def test_a_digest_is_of_what_is_on_the_disk_where_that_is_asked(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    assert copying.digest_of(source) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest()) and not synced
    assert copying.digest_of(source, durable=True)[0] == len(CONTENT) and len(synced) == 1


def test_a_link_and_a_pipe_are_no_files_of_a_checkpoint(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(OSError):
        copying.digest_of(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError):
        copying.digest_of(tmp_path / "pipe")


def test_a_file_is_read_in_pieces_of_a_few_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse, preadv, sizes = tmp_path / "sparse", os.preadv, list[int]()
    with sparse.open("wb") as file:
        file.truncate(16 * 2**20)

    def reads(file: int, buffers: Any, offset: int) -> int:
        sizes.append(sum(map(len, buffers)))
        return preadv(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", reads)
    assert copying.digest_of(sparse)[0] == 16 * 2**20
    assert min(sizes) >= 2**19 and max(sizes) <= 4 * 2**20, "two of them lie in memory"
    sizes.clear()
    (tmp_path / "small").write_bytes(b"x")
    copying.digest_of(tmp_path / "small")
    assert max(sizes) == os.sysconf("SC_PAGE_SIZE"), "a small file takes little"


def test_who_copies_sees_the_source_before_and_after(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, fsync = list[int](), os.fsync

    def meanwhile(file: int) -> None:
        fsync(file)
        os.utime(source, ns=(7, 7))

    os.utime(source, ns=(5, 5))
    monkeypatch.setattr(os, "fsync", meanwhile)
    copying.copy(source, tmp_path / "copy", lambda status: times.append(status.st_mtime_ns))
    assert times == [5, 7]


def test_a_copy_takes_no_path_that_is_taken_and_leaves_no_file_open(source: Path, tmp_path: Path) -> None:
    target, descriptors = tmp_path / "taken", os.listdir("/proc/self/fd")
    target.write_text("another's")
    with pytest.raises(FileExistsError):
        copying.copy(source, target)
    with pytest.raises(FileNotFoundError):
        copying.copy(tmp_path / "gone", tmp_path / "copy")
    assert target.read_text() == "another's" and not (tmp_path / "copy").exists()
    copying.copy(source, tmp_path / "copy")
    copying.digest_of(source)
    assert os.listdir("/proc/self/fd") == descriptors


def test_direct_writing_is_switched_only_on_a_change_that_the_file_system_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags, sets = [os.O_RDWR], list[int]()

    def control(file: int, request: int, value: int = 0) -> int:
        if request == copying.fcntl.F_GETFL:
            return flags[0]
        sets.append(value)
        flags[0] = value
        return 0

    monkeypatch.setattr(copying.fcntl, "fcntl", control)
    assert [copying._set_direct(9, direct) for direct in (False, True, True, False)] == [False, True, False, True]
    assert sets == [os.O_RDWR | os.O_DIRECT, os.O_RDWR]

    def refuses(file: int, request: int, value: int = 0) -> int:
        if request == copying.fcntl.F_GETFL:
            return os.O_RDWR
        raise OSError(errno.EINVAL, "no such writes")

    monkeypatch.setattr(copying.fcntl, "fcntl", refuses)
    assert copying._set_direct(9, True) is False
