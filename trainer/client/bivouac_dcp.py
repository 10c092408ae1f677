"""PyTorch's distributed checkpoints, digested while they are written:

    dcp.save(state, storage_writer=Writer(folder))
    saving = dcp.async_save(state, storage_writer=Writer(folder), process_group=own)

In the spec: `checkpoints: {format: dcp}`. A sealed checkpoint is a copy with the SHA-256 of every byte. With this
writer each rank digests what it writes, and a byte that changes before it is sealed keeps the checkpoint from being
sealed. Loading is DCP's own. Files go where the job's folder is: `async_save` stalls training for its copy to host
memory, which no faster tier would shorten. Without the supervisor the writer is DCP's with one file more.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

__all__ = ["Writer"]

_DIGESTS = ".digests.json"
"""`trainer.supervisor.seal.DIGESTS`."""
_PIECE_BYTES = 2**18
Digests = dict[str, tuple[int, str]]
"""Name of a file -> its size and SHA-256."""


class Writer(FileSystemWriter):
    """`FileSystemWriter`, which also leaves `.digests.json`: sizes and SHA-256 of all files, complete before
    `.metadata` appears. Every file is on the disk by then. Takes `FileSystemWriter`'s arguments, but `sync_files`."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(path, **{**options, "sync_files": True})
        self.fs: _Files = _Files()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self.fs.digests.clear()
        # Without items DCP writes an empty file, which no result would name to the coordinator.
        results = super().write_data(plan, planner).value() if plan.items else []
        if results:
            results[0] = _Digested(**vars(results[0]), digests=dict(self.fs.digests))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write both files of the coordinator, which has the results of all ranks."""
        self.fs.of_all = None
        if getattr(self, "use_collectives", True):  # else each rank ends a checkpoint of its own
            rank_results = [result for ranks in results for result in ranks if isinstance(result, _Digested)]
            self.fs.of_all = {name: digest for result in rank_results for name, digest in result.digests.items()}
        super().finish(metadata, results)


@dataclass(frozen=True)
class _Digested(WriteResult):
    """A rank's first result; it brings the digests of the rank's files to the coordinator."""

    digests: Digests = field(default_factory=dict)


class _Files(FileSystem):
    def __init__(self) -> None:
        self.digests: Digests = {}
        """Of the files that this rank has written."""
        self.of_all: Digests | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if mode != "wb":
            with super().create_stream(path, mode) as plain:
                yield plain
            return
        Path(path).unlink(missing_ok=True)  # a sealed checkpoint of an older supervisor may be linked to it
        with open(path, "wb") as file:
            stream = _Stream(file)
            yield stream
        self.digests[Path(path).name] = (stream.size, stream.sha256.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename what ends the checkpoint, `.metadata`, once the digests of all files and of it are on the disk."""
        if self.of_all is not None:
            files = {**self.of_all, Path(new_path).name: self.digests[Path(path).name]}
            partial = Path(new_path).with_name(f"{_DIGESTS}.partial")
            with partial.open("w") as file:
                json.dump({"files": files}, file)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(Path(new_path).with_name(_DIGESTS))
        super().rename(path, new_path)


class _Stream:
    """A file to which torch appends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256, self.size = file, hashlib.sha256(), 0
        self.tell, self.flush, self.fileno, self.close = file.tell, file.flush, file.fileno, file.close

    def write(self, content: Any) -> int:
        # Small pieces stay in the processor's cache between digest and copy.
        view = memoryview(content).cast("B")
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            self.sha256.update(piece)
            self._file.write(piece)
        self.size += len(view)
        return len(view)
