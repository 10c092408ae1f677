"""Shards to the node's disk ahead of need: of the shuffle window that is read now, and of the one after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from trainer.contract import TokenShard
from trainer.data.cache import Cache
from trainer.data.reader import Ahead, Reader
from trainer.events import emit

THREADS = 4
_POLL_S = 0.2


class Stager:
    """One per node. What it cannot bring, the reader asks for again and then says so."""

    def __init__(self, cache: Cache, reader: Reader, position: int) -> None:
        self._cache, self._reader, self._position = cache, reader, position
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="data-stage")
        self._thread = threading.Thread(target=self._run, name="data-stager", daemon=True)
        self._thread.start()

    def reached(self, position: int) -> None:
        """Training reads from here on."""
        self._position = position

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        pending: set[Future[object]] = set()
        for shard in self._due():
            if self._cache.holds(shard):
                continue
            pending = {future for future in pending if not future.done()}
            while len(pending) >= THREADS and not self._ended.wait(_POLL_S / 4):
                pending = {future for future in pending if not future.done()}
            if self._ended.is_set():
                return
            pending.add(self._pool.submit(self._bring, shard))

    def _due(self) -> Iterator[TokenShard]:
        """Without end; waits before what is more than a window away."""
        for ahead in self._reader.ahead(self._position):
            while self._early(ahead):
                if self._ended.wait(_POLL_S):
                    return
            yield from ahead.shards

    def _early(self, ahead: Ahead) -> bool:
        return ahead.position > self._position + ahead.positions

    def _bring(self, shard: TokenShard) -> None:
        try:
            self._cache.locate(shard)
        except Exception as error:
            emit("data_stage_failed", file=shard.file, seen=str(error)[:500])
