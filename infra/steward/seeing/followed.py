"""The log of one followed pod: lines that are not stored yet, its tail, and where its next piece begins."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

from infra.cluster.pod_logs import LogLine
from infra.record import pod_logs
from infra.record.pod_logs import Position
from infra.record.store import CampaignStore
from infra.record.trainer_lines import MARK

PIECE_BYTES = 2**20
SOONEST_S, LATEST_S, SHARE = 60.0, 900.0, 20
"""A piece is due when its first line has waited for a twentieth of the time that its pod has been followed, between one
minute and a quarter of an hour: a month of training makes some 3,000 pieces per pod instead of 40,000."""
_TAIL = 40
_WIDTH = 300


class Untold(NamedTuple):
    """An event that the listener has not taken yet."""

    number: int
    """Number of its line among the pod's lines that this process read."""
    event: dict[str, Any]


class _Pending(NamedTuple):
    number: int
    until: Position
    text: str


class Followed:
    """Buffer between the thread that reads a pod's log and the threads that store it."""

    def __init__(self, pod: str, store: CampaignStore) -> None:
        self.pod, self._store = pod, store
        self.leaving = self.over = False
        """`leaving`: the pod is of an earlier attempt; `over`: its log was read to the end."""
        self.marks = False
        """Some line of its log begins with a supervisor's mark."""
        self.untold: list[Untold] = []
        self.position = Position()
        self._pending: deque[_Pending] = deque()
        self._bytes, self._numbers, self._piece = 0, 0, 0
        self._begun, self._oldest = time.monotonic(), 0.0
        self._plain: deque[str] = deque(maxlen=_TAIL)
        self._last: deque[str] = deque(maxlen=_TAIL)
        self._lock, self._shipping = threading.Lock(), threading.Lock()

    def resume(self) -> None:
        """Continue where the last stored piece ends, whoever stored it. Raises S3's errors."""
        keys = pod_logs.pieces(self._store, self.pod)
        self._piece = len(keys)
        if keys:
            self.position, text = pod_logs.read(self._store, keys[-1])
            # A supervisor's first line comes before all of its job's.
            first_text = text if len(keys) == 1 else pod_logs.read(self._store, keys[0])[1]
            self.marks = f"\n{MARK}" in f"\n{first_text}\n{text}"
            for line in text.split("\n"):
                self._remember(line)

    def take(self, line: LogLine, untold: dict[str, Any] | None) -> None:
        """Add a line. `untold`: its event, if the listener failed at it."""
        with self._lock:
            previous_position = self.position
            equal_lines = previous_position.lines + 1 if line.at <= previous_position.at else 1
            self.position = Position(max(line.at, previous_position.at), equal_lines)
            if not self._pending:
                self._oldest = time.monotonic()
            self._pending.append(_Pending(self._numbers, self.position, line.text))
            if untold is not None:
                self.untold.append(Untold(self._numbers, untold))
            self._numbers += 1
            self._bytes += len(line.text)
            self._remember(line.text)

    def tail(self, lines: int) -> list[str]:
        with self._lock:
            return list(self._plain or self._last)[-lines:]

    def drop_events(self, taken_events: list[Untold]) -> None:
        with self._lock:
            self.untold = [entry for entry in self.untold if entry not in taken_events]

    @property
    def full(self) -> bool:
        return self._bytes >= PIECE_BYTES

    @property
    def is_stored(self) -> bool:
        return not self._pending and not self.untold

    def due(self) -> bool:
        with self._lock:
            if not self._pending:
                return False
            now = time.monotonic()
            longest = min(LATEST_S, max(SOONEST_S, (now - self._begun) / SHARE))
            return self.full or self.over or self.leaving or now - self._oldest >= longest

    def ship(self, force: bool) -> None:
        """Store the due lines in pieces. Raises S3's errors; lines that are not stored stay pending.

        A line whose event is not taken yet and the lines after it wait, unless `force` is set or they fill a
        piece: a successor after a kill must read that line again.
        """
        with self._shipping:
            while (force or self.due()) and (batch := self._batch(force)):
                body, end_position = "".join(line.text for line in batch).encode(), batch[-1].until
                key = f"{self._store.prefix}/{pod_logs.piece(self.pod, self._piece)}"
                if not self._store.put_if_absent(key, body, {pod_logs.UNTIL: end_position.stored()}):
                    # A predecessor wrote it, or we did and the answer was lost: the stored piece counts.
                    end_position, _ = pod_logs.read(self._store, key)
                self._piece += 1
                with self._lock:
                    while self._pending and self._pending[0].until <= end_position:
                        self._bytes -= len(self._pending.popleft().text)
                    self._oldest = time.monotonic()

    def _batch(self, force: bool) -> list[_Pending]:
        with self._lock:
            held_number = min((line.number for line in self.untold), default=None)
            if force or self.full:
                held_number = None
            size, batch = 0, list[_Pending]()
            for line in self._pending:
                if size >= PIECE_BYTES or (held_number is not None and line.number >= held_number):
                    break
                size += len(line.text)
                batch.append(line)
            return batch

    def _remember(self, line: str) -> None:
        if not line.strip():
            return
        line = line.removeprefix(MARK)
        for tail in (self._last, *(() if line.startswith("{") else (self._plain,))):
            tail.append(line.rstrip("\n")[:_WIDTH])
