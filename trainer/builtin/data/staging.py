"""Copying of shards to the node's disk ahead of need, for the present shuffle window and the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from trainer.builtin.data.cache import Cache
from trainer.builtin.data.reader import Reader
from trainer.client.bivouac_data.reader import Ahead
from trainer.contract import TokenShard
from trainer.events import emit

THREADS = 4
_POLL_S, _END_S = 0.2, 5.0


class Stager:
    """One per node. When it fails to copy a shard, the reader tries again and raises the error."""

    def __init__(self, cache: Cache, reader: Reader, position: int, lead: int = 0) -> None:
        """`lead`: least number of positions to copy ahead, whatever a window's size."""
        self._cache, self._reader, self._position, self._lead = cache, reader, position, lead
        self._ended, self._moved = threading.Event(), threading.Event()
        self.ahead = threading.Event()
        """Set while all shards that are due at the present position are copied."""
        self._pending: set[Future[None]] = set()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="data-stage")
        self._thread = threading.Thread(target=self._run, name="data-stager", daemon=True)
        self._thread.start()

    def advance(self, position: int) -> None:
        """Note that training reads from `position` on."""
        self._position = position
        self.ahead.clear()
        self._moved.set()

    def close(self) -> None:
        self._ended.set()
        self._moved.set()
        self._thread.join(_END_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        for shard in self._due():
            if self._cache.holds(shard):
                self._stage_shard(shard)  # updates its last use, so that it is not dropped before it is needed
                continue
            if len(self._pending) >= THREADS:
                self._pending = wait(self._pending, return_when=FIRST_COMPLETED).not_done
            if self._ended.is_set():
                return
            self._pending.add(self._pool.submit(self._stage_shard, shard))

    def _settle(self, position: int) -> None:
        self._pending = wait(self._pending, timeout=0).not_done
        if not self._pending and position == self._position:
            self.ahead.set()

    def _due(self) -> Iterator[TokenShard]:
        """Yield shards without end; wait before those more than a window ahead."""
        for ahead in self._reader.ahead(self._position):
            while self._early(ahead, position := self._position):
                self._settle(position)
                self._moved.wait(_POLL_S)
                self._moved.clear()
                if self._ended.is_set():
                    return
            yield from ahead.shards

    def _early(self, ahead: Ahead, position: int) -> bool:
        return ahead.position > position + max(ahead.positions, self._lead)

    def _stage_shard(self, shard: TokenShard) -> None:
        try:
            self._cache.locate(shard)
        except Exception as error:
            emit("data_stage_failed", file=shard.file, seen=str(error)[:500])
