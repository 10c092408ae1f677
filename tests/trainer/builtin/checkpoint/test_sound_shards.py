"""What a search takes for a sound copy of a shard, and what it waits for."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.manifests import shard_at
from tests.trainer.builtin.checkpoint.saved_steps import flip, saved
from tests.trainer.builtin.checkpoint.test_checkpoint_parts import Harmful
from trainer.builtin.checkpoint import search
from trainer.builtin.checkpoint.deepspeed_engine import forbidden, load_safely
from trainer.builtin.checkpoint.search import identity_of, look, unsound_shards
from trainer.builtin.checkpoint.tiers import Tiers, campaign_tiers
from trainer.errors import OutOfFiles, OutOfMemory, StorageError


@pytest.fixture
def tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiers:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power fails here, and a busy disk takes its time
    return campaign_tiers(tmp_path / "local", tmp_path / "shared", "tiny")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen: list[float] = []
    monkeypatch.setattr(search, "time", SimpleNamespace(sleep=seen.append))
    return seen


def test_a_copy_is_sound_by_its_digest_and_by_what_it_would_construct(tiers: Tiers, tmp_path: Path) -> None:
    manifest = saved([tiers.shared], 10)
    folder, shard = tiers.shared.folder(10), manifest.shards[0]
    path = folder / shard.file
    why, identity = look(path, shard)
    seen = path.stat()
    assert why == "" and identity == (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)

    harmful = tmp_path / "attempt-0001" / "harmful.pt"
    harmful.parent.mkdir()
    torch.save({"x": Harmful()}, harmful)
    why, identity = look(harmful, shard_at(harmful))
    assert "posix.system" in why and (tmp_path / "harmed").exists() is False
    harmful.write_bytes(b"no file of torch's")
    assert look(harmful, shard_at(harmful))[0].startswith("not a file of torch's")

    content = path.read_bytes()
    flip(path)
    other = shard_at(path).sha256
    assert look(path, shard) == (other, ())
    path.write_bytes(content[:-1])
    cut = shard_at(path).sha256
    assert look(path, shard) == (f"{cut}, {len(content) - 1} bytes", ())
    path.unlink()
    assert look(path, shard) == look(tiers.shared.root / "step" / "x", shard) == ("missing", ())
    (tmp_path / "file").touch()
    assert look(tmp_path / "file" / "below", shard) == ("missing", ())


def test_verified_names_the_shards_that_are_not_sound_with_what_was_seen(tiers: Tiers) -> None:
    manifest = saved([tiers.shared], 10, ranks=2)
    assert unsound_shards(manifest, tiers.shared.folder(10)) == []
    gone, changed = manifest.shards[0], manifest.shards[-1]
    (tiers.shared.folder(10) / gone.file).unlink()
    flip(tiers.shared.folder(10) / changed.file)
    sha256 = shard_at(tiers.shared.folder(10) / changed.file).sha256
    assert unsound_shards(manifest, tiers.shared.folder(10)) == [(gone, "missing"), (changed, sha256)]


def test_whatever_changes_a_file_changes_its_identity(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"content")
    os.utime(path, ns=(1, 1))
    with path.open("rb") as file:
        first, again = identity_of(file), identity_of(file)
    assert first == again
    while path.stat().st_ctime_ns == first[-1]:  # the kernel's clock has to tick; nobody can set this time
        path.write_bytes(b"another")
        os.utime(path, ns=(1, 1))
    with path.open("rb") as file:
        second = identity_of(file)
    assert first[:-1] == second[:-1] and first != second
    (tmp_path / "other").write_bytes(b"another")
    (tmp_path / "other").replace(path)
    with path.open("rb") as file:
        assert identity_of(file)[1] != second[1]


@pytest.mark.parametrize(("number", "error"), [(errno.EMFILE, OutOfFiles), (errno.ENOMEM, OutOfMemory)])
@pytest.mark.parametrize("name", ["open_regular", "sha256_of", "forbidden"])
def test_a_limit_says_nothing_of_a_copy_and_is_waited_for_as_storage_is(
    number: int, error: type[Exception], name: str, tiers: Tiers, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: object) -> None:
        raise OSError(number, os.strerror(number))

    shard = saved([tiers.shared], 10).shards[0]
    monkeypatch.setattr(search, name, refuse)
    with pytest.raises(error, match=shard.file):
        look(tiers.shared.folder(10) / shard.file, shard, (0.1,))
    assert pauses == [0.1]


@pytest.mark.parametrize(
    ("error", "of"),
    [
        (MemoryError(), OutOfMemory),
        (RuntimeError("unable to mmap 8 bytes: Cannot allocate memory (12)"), OutOfMemory),
        (OSError(errno.EMFILE, "Too many open files"), OutOfFiles),
        (OSError(errno.EIO, "Input/output error"), OSError),
    ],
)
def test_what_stops_a_shard_from_being_read_says_nothing_of_what_it_holds(
    error: Exception, of: type[Exception], tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **how: object) -> None:
        raise error

    shard = saved([tiers.shared], 10).shards[0]
    monkeypatch.setattr(torch.serialization, "get_unsafe_globals_in_checkpoint", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    with (tiers.shared.folder(10) / shard.file).open("rb") as file:
        with pytest.raises(of):
            forbidden(file)
        with pytest.raises(StorageError if of is OSError else of):
            load_safely(file)


@pytest.mark.parametrize(
    ("number", "times", "said", "waited"),
    [
        (errno.EIO, 0, "", []),
        (errno.EIO, 1, "", [0.1]),
        (errno.ESHUTDOWN, 2, "", [0.1, 0.2]),
        (errno.EIO, 3, "unreadable: Input/output error", [0.1, 0.2]),
        (errno.EACCES, 1, "unreadable: Permission denied", []),
        (errno.EINVAL, 1, "unreadable: Invalid argument", []),
        (errno.ENOENT, 1, "missing", []),
    ],
)
def test_what_may_pass_is_waited_for_and_what_will_not_is_refused_at_once(
    number: int, times: int, said: str, waited: list[float], tiers: Tiers, pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    manifest = saved([tiers.shared], 10)
    real, left = search.open_regular, [times]

    def failing(path: Path) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(search, "open_regular", failing)
    why, identity = look(tiers.shared.folder(10) / manifest.shards[0].file, manifest.shards[0], (0.1, 0.2))
    assert why == said and bool(identity) == (not said) and pauses == waited
