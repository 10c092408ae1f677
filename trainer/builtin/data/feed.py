"""The feed: a thread reads the rank's next batches while the loop trains."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.builtin.data.reader import Reader
from trainer.builtin.data.staging import Stager
from trainer.client.bivouac_data.reader import is_masked
from trainer.contract.ledger import step_digest

_POLL_S = 0.2
_END_S = 5.0


Batch = NDArray[np.int64]


def placement_for(device: torch.device) -> Callable[[Batch], Batch]:
    """Return the function that puts a batch into memory that `device` reads well; a CPU reads any."""
    if device.type != "cuda":
        return _as_it_is

    def lock_pages(batch: Batch) -> Batch:
        # A new thread works on the first device, and would open a context there.
        torch.cuda.set_device(device)
        return torch.from_numpy(batch).pin_memory().numpy()

    return lock_pages


def _as_it_is(batch: Batch) -> Batch:
    return batch


@dataclass(frozen=True)
class Share:
    """One rank's positions of each step; all data-parallel ranks together cover the global batch exactly once."""

    global_batch: int
    micro_batch: int
    world_size: int
    """Ranks, or groups of ranks, that read different sequences."""
    rank: int

    def micro_batches(self, position: int) -> list[range]:
        """Return the positions of the step that begins at `position`."""
        size, stride = self.micro_batch, self.micro_batch * self.world_size
        starts = range(position + self.rank * size, position + self.global_batch, stride)
        return [range(start, start + size) for start in starts]


@dataclass(frozen=True)
class Fed:
    """One step of one rank."""

    position: int
    micro_batches: tuple[NDArray[np.int64], ...]
    digest: int
    """Digest of this rank's part; see `trainer.contract.ledger`."""
    entropy: float = 0.0
    """Mean entropy in nats of the tokens of a micro batch, for the watch."""
    counted: tuple[int, ...] = ()
    """Of masked data, the targets of each micro batch that the loss counts; of text all count, and this is empty."""


class Feed:
    """Steps in order from a position. An error of the reading thread is raised at its step."""

    def __init__(
        self,
        reader: Reader,
        share: Share,
        position: int,
        end: int,
        steps_ahead: int,
        stager: Stager | None = None,
        place: Callable[[Batch], Batch] | None = None,
    ) -> None:
        """`place`: puts a batch into other memory, in the reading thread."""
        self._place = place or placement_for(torch.device("cpu"))
        self._reader, self._share, self._stager = reader, share, stager
        self._ready: queue.Queue[Fed | BaseException] = queue.Queue(steps_ahead)
        self._ended, self._begun = threading.Event(), threading.Event()
        self.wait_seconds = 0.0
        """Total wait in `next` and `wait_for_first`, seconds."""
        steps = range(position, end, share.global_batch)
        self._thread = threading.Thread(target=self._run, args=(iter(steps),), name="data-feed", daemon=True)
        self._thread.start()

    def wait_for_first(self) -> None:
        """Wait until `next` has the first step or an error, or there is no step."""
        start_s = time.monotonic()
        self._begun.wait()
        self.wait_seconds += time.monotonic() - start_s

    def next(self) -> Fed:
        """Return the next step's batches. Raises the reading thread's `DataError` or `StorageError`."""
        start_s = time.monotonic()
        item = self._ready.get()
        self.wait_seconds += time.monotonic() - start_s
        if isinstance(item, BaseException):
            raise item
        if self._stager is not None:
            self._stager.advance(item.position)
        return item

    def close(self) -> None:
        self._ended.set()
        self._thread.join(_END_S)
        if self._stager is not None:
            self._stager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._ended.set()  # after an error, do not wait for a disk

    def _run(self, steps: Iterator[int]) -> None:
        # Python before 3.14 tells the kernel no name, and `top -H` and the stacks of a hang show the kernel's.
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(self._thread.name)
        try:
            for position in steps:
                if not self._offer(self._read(position)):
                    return
        except BaseException as error:
            self._offer(error)
        finally:
            self._begun.set()

    def _read(self, position: int) -> Fed:
        parts, digests = [], list[int]()
        for positions in self._share.micro_batches(position):
            rows = self._reader.stored(positions)
            digests += self._reader.digests(positions, rows)
            parts.append(self._place(rows.astype(np.int64)))
        counts = tuple(int((part[:, 1:] >= 0).sum()) for part in parts) if is_masked(self._reader.manifest) else ()
        return Fed(position, tuple(parts), step_digest(digests), sum(map(entropy, parts)) / len(parts), counts)

    def _offer(self, item: Fed | BaseException) -> bool:
        while not self._ended.is_set():
            try:
                self._ready.put(item, timeout=_POLL_S)
                self._begun.set()
                return True
            except queue.Full:
                continue
        return False


def entropy(tokens: NDArray[np.int64]) -> float:
    """Return the entropy in nats of the distribution of tokens in an array."""
    counts = np.unique(tokens, return_counts=True)[1] / tokens.size
    return float(-(counts * np.log(counts)).sum())
