"""A node's bounded cache of the shards in use, shared by its ranks and verified before use.

Files are named by their digest. A process holds a shared lock on a shard while it is mapped; the others are removed for
room, the least recently used first. One process copies a shard, the others wait for its lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trainer.buckets.sources import ShardSource
from trainer.contract import TokenShard
from trainer.errors import DataError, storage_error
from trainer.events import emit

TRIES = 5
FIRST_PAUSE_S = 0.5
"""Doubled after every failed try."""
SLOW_AFTER_S = 10.0
FLOOR_BYTES_PER_S = 2**20
"""A slower copy is started again, except in the last try: slow is better than never."""


class _Unusable(OSError):
    """The copy is not the shard or is too slow."""


class _Wrong(_Unusable):
    """The source has no such shard, or other bytes under its name. If every try says so, the data set is damaged."""


@dataclass(frozen=True)
class Cache:
    folder: Path
    limit_bytes: int
    source: ShardSource
    token_bytes: int
    session: str
    """Copies of another session are verified again before use."""
    sleep: Callable[[float], None] = time.sleep

    def locate(self, shard: TokenShard) -> Path:
        """Return the path of a verified copy; copy the shard first if needed.

        Raises `StorageError` with shard and source when every try failed, `DataError` when every try found the same
        wrong bytes or no shard.
        """
        path = self.folder / f"{shard.sha256}.bin"
        if self._is_trusted(path):
            _touch(path)
            return path
        self.folder.mkdir(parents=True, exist_ok=True)
        with _lock(self.folder / f"{shard.sha256}.lock"):
            if not self._is_trusted(path):
                if not (path.exists() and _digest(path) == shard.sha256):
                    path.unlink(missing_ok=True)
                    self._download(shard, path)
                _mark(path).write_text(self.session)
            _touch(path)
        return path

    def open(self, shard: TokenShard) -> int:
        """Return a descriptor of the copy; its shared lock keeps the copy while the descriptor or a map of it lives."""
        while True:
            try:
                descriptor = os.open(self.locate(shard), os.O_RDONLY)
            except FileNotFoundError:
                continue  # another process dropped it to make room
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            return descriptor

    def holds(self, shard: TokenShard) -> bool:
        return self._is_trusted(self.folder / f"{shard.sha256}.bin")

    def _is_trusted(self, path: Path) -> bool:
        try:
            return _mark(path).read_text() == self.session and path.exists()
        except OSError:
            return False

    def _download(self, shard: TokenShard, path: Path) -> None:
        troubles: list[OSError] = []
        for number in range(TRIES):
            if number:
                self.sleep(FIRST_PAUSE_S * 2 ** (number - 1))
            partial = path.with_suffix(".partial")
            try:
                with self._reserve(partial, shard.tokens * self.token_bytes) as file:
                    self._copy(shard, file, patient=number == TRIES - 1)
                    partial.rename(path)
                return
            except OSError as error:
                troubles.append(error)
                detail = str(error) or type(error).__name__
                emit("data_retry", file=shard.file, source=str(self.source), attempt_of=TRIES, seen=detail)
        texts = dict.fromkeys(str(trouble) or type(trouble).__name__ for trouble in troubles)
        detail = f"{shard.file} from {self.source}, {TRIES} tries: {'; '.join(texts)}"
        if len(texts) == 1 and all(isinstance(trouble, _Wrong) for trouble in troubles):
            raise DataError("a data shard is missing or damaged at its source", detail, "stage the data set again")
        cure = "repair the source, or stage the data set again"
        raise storage_error(troubles[-1], "a data shard cannot be copied", detail, cure)

    def _copy(self, shard: TokenShard, file: BinaryIO, patient: bool) -> None:
        digest, size, start_s = hashlib.sha256(), 0, time.monotonic()
        for piece in self._pieces(shard):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
            spent_s = time.monotonic() - start_s
            if not patient and spent_s > SLOW_AFTER_S and size < FLOOR_BYTES_PER_S * spent_s:
                raise _Unusable(f"slow: {size} bytes in {spent_s:.0f} s")
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
        if digest.hexdigest() != shard.sha256:
            raise _Wrong(f"corrupt: {size} bytes with digest {digest.hexdigest()}, wanted {shard.sha256}")

    def _pieces(self, shard: TokenShard) -> Iterator[bytes]:
        try:
            yield from self.source.read(shard.file)
        except FileNotFoundError as error:
            raise _Wrong(str(error)) from error

    @contextmanager
    def _reserve(self, partial: Path, size: int) -> Iterator[BinaryIO]:
        """Yield a file of the full size, so that other processes count its room; remove it unless it is renamed."""
        with _lock(self.folder / "room.lock"):
            self._make_room(size)
            file = partial.open("wb")
            # Locked while it is written: others can lock only what a dead process left.
            fcntl.flock(file, fcntl.LOCK_SH)
            file.truncate(size)
        try:
            yield file
        finally:
            file.close()
            partial.unlink(missing_ok=True)

    def _make_room(self, new_bytes: int) -> None:
        """Drop the least recently used copies that nobody has mapped, until `new_bytes` bytes fit below the limit."""
        copies = sorted(self._copies())
        used_bytes = sum(size for _, size, _ in copies)
        for _, size, path in copies:
            if used_bytes + new_bytes <= self.limit_bytes:
                return
            if _drop_unused(path):
                used_bytes -= size
        if used_bytes + new_bytes > self.limit_bytes:
            # All copies are in use: exceed the limit and report it.
            emit("data_cache_small", used_bytes=used_bytes, needed_bytes=new_bytes, limit_bytes=self.limit_bytes)

    def _copies(self) -> Iterator[tuple[int, int, Path]]:
        """Yield (last use, bytes, path) of all copies, unfinished ones included."""
        # Partial names first, twice: a file that is renamed meanwhile must not be missed.
        names = ("*.partial", "*.bin")
        for path in dict.fromkeys(path.with_suffix("") for name in names for path in self.folder.glob(name)):
            for suffix in (".partial", ".bin"):
                copy = path.with_suffix(suffix)
                with suppress(FileNotFoundError):
                    status = copy.stat()
                    yield status.st_mtime_ns, status.st_size, copy
                    break


def _drop_unused(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _mark(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _mark(path: Path) -> Path:
    return path.with_suffix(".verified")


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except FileNotFoundError:
        return


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
