"""A file that a limit or a busy storage keeps from being read is no damaged one: the newest step stays the newest."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.aws.parts import Altered
from infra.aws.transfer import MIB
from infra.checkpoints.place import FolderPlace
from infra.plain_files import has_size, open_plain, plain_bytes, sha256_of
from tests.unit.archive.archive_story import S3, Wire, a_file, archiver, bucket_of, commit, site_at
from tests.worlds.refusing_kernel import Refuse
from trainer.contract import Shard

pytestmark = pytest.mark.usefixtures("pauses")


@pytest.mark.parametrize("file", ["manifest.json", "a.pt"])
def test_the_newest_step_is_archived_once_its_tier_answers_again(
    file: str, tmp_path: Path, refuse: Refuse, pauses: list[float]
) -> None:
    site = site_at(tmp_path)
    commit(site, 20), commit(site, 30)
    failed = refuse(errno.ESHUTDOWN, f"step-00000030/{'' if file == 'manifest.json' else 'attempt-0001/'}{file}", 2)
    assert archiver(site).run().step == 30 and len(failed) == 2 and pauses == [1.0, 5.0]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("file", ["manifest.json", "a.pt"])
def test_a_limit_passes_over_no_step(number: int, file: str, tmp_path: Path, refuse: Refuse) -> None:
    site = site_at(tmp_path)
    commit(site, 20), commit(site, 30)
    refuse(number, f"step-00000030/{'' if file == 'manifest.json' else 'attempt-0001/'}{file}")
    with pytest.raises(OSError, match=os.strerror(number)):
        archiver(site).run()


def test_a_plain_file_that_a_limit_hides_has_no_other_size_and_no_other_digest(tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    asks: tuple[Callable[[], object], ...] = (
        lambda: sha256_of(tmp_path / "a"),
        lambda: has_size(tmp_path / "a", 3),
        lambda: plain_bytes(tmp_path / "a"),
        lambda: FolderPlace(tmp_path).content(5, "a"),
        lambda: FolderPlace(tmp_path).fault(5, Shard(file="attempt-0001/a", size_bytes=3, sha256="0" * 64, rank=0)),
    )
    refuse(errno.EMFILE, str(tmp_path))
    for ask in asks:
        with pytest.raises(OSError, match="Too many open files"):
            ask()


def test_a_file_that_is_gone_or_stays_unreadable_is_as_before(tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest() and plain_bytes(tmp_path / "a") == b"abc"
    assert has_size(tmp_path / "a", 3) and not has_size(tmp_path / "a", 4)
    assert sha256_of(tmp_path / "b") is None and not has_size(tmp_path / "b", 3)
    assert not has_size(tmp_path, tmp_path.lstat().st_size), "a folder"
    with pytest.raises(ValueError, match="null"):
        sha256_of(tmp_path / "\0")
    refuse(errno.EIO, str(tmp_path / "a"))
    assert sha256_of(tmp_path / "a") is None and not has_size(tmp_path / "a", 3)


def test_a_step_is_verified_and_sent_once_its_storage_answers_again(
    tmp_path: Path, refuse: Refuse, pauses: list[float]
) -> None:
    s3, content = S3(), os.urandom(3 * MIB)
    bucket, (path, item) = bucket_of(s3, Wire(s3), []), a_file(tmp_path, content)
    shard = Shard(file="attempt-0001/a", size_bytes=len(content), sha256=item.sha256, rank=0)
    (tmp_path / "step-00000005/attempt-0001").mkdir(parents=True)
    (tmp_path / "step-00000005/attempt-0001/a").write_bytes(content)
    refuse(errno.EIO, "attempt-0001/a", 2)
    assert FolderPlace(tmp_path).fault(5, shard) is None and pauses == [1.0, 5.0]
    failed = refuse(errno.ESHUTDOWN, str(path), 3, ["open"])
    bucket.place("golden/large", item)
    bucket.read_back(bucket.place("golden/large", item), None)
    assert len(failed) == 3


@pytest.mark.parametrize("size", [8, 3 * MIB])
@pytest.mark.parametrize("calls", [["open"], ["open", "lstat"]])
@pytest.mark.parametrize(("number", "error"), [(errno.EMFILE, OSError), (errno.EIO, Altered)])
def test_an_upload_that_a_limit_stops_is_of_no_altered_file(
    size: int, calls: list[str], number: int, error: type[Exception], tmp_path: Path, refuse: Refuse
) -> None:
    s3 = S3()
    bucket, (path, content) = bucket_of(s3, Wire(s3), []), a_file(tmp_path, os.urandom(size))
    refuse(number, str(path), calls=calls)
    with pytest.raises(error):
        bucket.place("golden/large", content)


def test_only_a_plain_file_is_opened_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    opened = len(os.listdir("/proc/self/fd"))
    for name in ("link", "pipe", "."):
        with pytest.raises(OSError):
            open_plain(tmp_path / name)
        assert sha256_of(tmp_path / name) is None
    assert len(os.listdir("/proc/self/fd")) == opened
