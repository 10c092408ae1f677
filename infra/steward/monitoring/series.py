"""Keep the campaign's series with its record: Prometheus and its data end with the cluster.

They are asked for by `query_range`, a window at a time. Not by Prometheus' snapshots: those need its admin API, lie on
the system node until somebody fetches all of them at once, and are lost with the node, as Prometheus' own data are.
Each window is one object of the record, so a successor goes on behind the newest one, and the archive copies them all.
"""

from __future__ import annotations

import gzip
import io
import logging
import math
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus

from infra.clock import Clock
from infra.errors import LeaseLost
from infra.monitoring.exporters import known_metrics
from infra.monitoring.prometheus import PORT, SERVICE, SPACE, range_path
from infra.monitoring.series import MetricSeries, lines, matrix
from infra.record.lease_thread import LeaseThread
from infra.record.payloads.alerts import SeriesUnkept
from infra.record.series import piece, pieces, span
from infra.record.store import CampaignStore
from infra.steward.seeing import agents

log = logging.getLogger("series")
WINDOW_S = 900
STEPS_S = (15, 60, 300)
"""Between two samples that are kept; a window that is too large is kept with the next one."""
MOST_BYTES = 2**20
"""Of a window, compressed: at most 2.9 GB in 30 days, whatever the number of nodes."""
_LATE_S = 15.0
_UNKEPT_S = 1800.0
"""Time without an answer after which people read of it."""
_FLUSH_S = 20.0
"""GPU nodes bill while the archive waits for the last window."""
_ANSWER_S, _ANSWER_BYTES = 15.0, 16 * agents.MIB
"""Parsed, an answer takes ten times its bytes of the steward's memory."""
Reader = Callable[[str, int, int, int], Sequence[MetricSeries]]


def read(query: str, begin: int, end: int, step: int) -> list[MetricSeries]:
    """Return the series of a query from Prometheus in the cluster. Raises `NoAnswer`."""
    path = range_path(query, begin, end, step)
    answer = agents.get(f"{SERVICE}.{SPACE}", path, _ANSWER_S, _ANSWER_BYTES, PORT)
    if answer.code != HTTPStatus.OK:
        raise agents.NoAnswer(f"Prometheus answers with status {answer.code}")
    try:
        return matrix(answer.body)
    except ValueError as error:
        raise agents.NoAnswer(str(error)) from error


class SeriesKeeper(LeaseThread):
    """A thread that writes each window once it is over, and what the steward asks for before it archives."""

    name, every_s = "series", 15.0

    def __init__(
        self,
        store: CampaignStore,
        guard: Callable[[], None],
        clock: Clock,
        read: Reader = read,
        names: Sequence[str] | None = None,
    ) -> None:
        """`guard` raises where the lease is lost: another steward then keeps the series. `names`: None is all."""
        self._store, self._guard, self._clock, self._read = store, guard, clock, read
        self._names = known_metrics() if names is None else names
        self._lock = threading.Lock()
        self._next: int | None = None
        """Begin of the next window; None: the record was not asked yet."""
        self._failing_since: float | None = None
        self._deadline = math.inf
        self._is_told, self._flushes = False, False

    def open(self) -> None:
        self._flushes = True
        super().open()

    def look(self) -> None:
        """Keep each window that is over. Raises S3's errors, `LeaseLost` and `LeaseUnproven`."""
        with self._lock:
            try:
                self._keep_windows()
                self._failing_since, self._is_told = None, False
            except agents.NoAnswer as error:
                now = self._clock.monotonic()
                self._failing_since = now if self._failing_since is None else self._failing_since
                if not self._is_told and now - self._failing_since >= _UNKEPT_S:
                    self._tell(str(error))
                    self._is_told = True

    def flush(self, tells: bool = True) -> None:
        """Keep all up to now, within a bound; where Prometheus does not answer, the record says what is missing, if
        this `tells`, and no later flush waits for it. Raises `LeaseLost` alone: an archive never waits for series."""
        if not self._flushes:
            return
        self._deadline = self._clock.monotonic() + _FLUSH_S  # the thread hurries as well
        try:
            if not self._lock.acquire(timeout=_FLUSH_S):
                raise agents.NoAnswer("an earlier window is still being fetched")
            try:
                begin = self._keep_windows()
                end = int(self._clock.now().timestamp()) // STEPS_S[0] * STEPS_S[0]
                if end > begin:
                    self._keep(begin, end)
            finally:
                self._lock.release()
        except LeaseLost:
            raise
        except agents.NoAnswer as error:
            self._flushes = False
            if tells:
                self._tell_quietly(str(error))
        except Exception:
            log.exception("series are not flushed")
        finally:
            self._deadline = math.inf

    def _tell_quietly(self, reason: str) -> None:
        try:
            self._tell(reason)
        except LeaseLost:
            raise
        except Exception:
            log.exception("nobody is told of lost series")

    def _keep_windows(self) -> int:
        """Keep the windows that are over; return the begin of the one that is not."""
        self._guard()
        begin = self._begin()
        while begin // WINDOW_S * WINDOW_S + WINDOW_S + _LATE_S <= self._clock.now().timestamp():
            self._keep(begin, begin // WINDOW_S * WINDOW_S + WINDOW_S)
            begin = self._begin()
        return begin

    def _begin(self) -> int:
        """Return the begin of the next window: behind the newest piece, else a whole window before this steward's."""
        if self._next is None:
            spans = [kept_span for key in pieces(self._store)[-1:] if (kept_span := span(key)) is not None]
            now = int(self._clock.now().timestamp())
            self._next = spans[0][1] if spans else now // WINDOW_S * WINDOW_S - WINDOW_S
        return self._next

    def _keep(self, begin: int, end: int) -> None:
        """Write one piece. Raises `NoAnswer` and S3's errors."""
        body = self._body(begin, end)
        if body is None:
            self._tell(f"they are larger than {MOST_BYTES} bytes even with a sample each {STEPS_S[-1]} s")
        elif body:
            self._guard()
            self._store.put_if_absent(f"{self._store.prefix}/{piece(begin, end)}", body)
        self._next = end

    def _body(self, begin: int, end: int) -> bytes | None:
        """Return a window's text, compressed; empty without a series; None if it is too large whatever the step. Raises
        `NoAnswer`."""
        for step in STEPS_S:
            body = self._body_by(begin, end, step)
            if body is not None:
                return body
        return None

    def _body_by(self, begin: int, end: int, step: int) -> bytes | None:
        """Return the text with a sample each `step` seconds; None if it is too large. With the longest step, metrics
        that are too large by themselves are left out and told."""
        buffer, is_empty, large_names = io.BytesIO(), True, list[str]()
        with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
            for name in self._names:
                if self._clock.monotonic() > self._deadline:
                    raise agents.NoAnswer("there was no time for all that was not kept before")
                try:
                    # The end belongs to the next window.
                    rows = self._read(name, begin, end - 1, step)
                except agents.TooLong:
                    if step != STEPS_S[-1]:
                        return None
                    large_names.append(name)
                    continue
                if rows:
                    is_empty = False
                    file.writelines(line.encode(errors="replace") for line in lines(name, rows))
                if buffer.tell() > MOST_BYTES:
                    return None
        if buffer.tell() > MOST_BYTES and not is_empty:
            return None
        if large_names:
            self._tell(f"answers about {', '.join(large_names)} are longer than {_ANSWER_BYTES} bytes")
        return b"" if is_empty else buffer.getvalue()

    def _tell(self, reason: str) -> None:
        self._guard()
        self._store.append(SeriesUnkept(begin=datetime.fromtimestamp(self._begin(), UTC), why=reason))
