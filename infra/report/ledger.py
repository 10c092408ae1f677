"""Ledger of paid time: every paid second has one cause, from the trainer's lines, else the attempts, else the stages.

Which line of the bill was up and when is the meter's word: `infra.record.meter`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from infra.plan.estimates.cost import CostLine
from infra.record import meter
from infra.record.events import Stage
from infra.record.meter import Billing, price
from infra.record.payloads.attempts import AttemptRestartedInPlace, NodesAtZero
from infra.report.causes import TimeCause
from infra.report.model import AttemptTime, StageTime
from infra.report.record import Record
from infra.report.timeline import training_finished_s
from infra.report.trainer_log import TrainerLog

_STAGE_CAUSE = {
    Stage.PROVISION: TimeCause.PROVISION,
    Stage.BAKE: TimeCause.BAKE,
    Stage.PREFLIGHT: TimeCause.PREFLIGHT,
    Stage.LAUNCH: TimeCause.STARTUP,
    Stage.ARCHIVE: TimeCause.ARCHIVE,
    Stage.TEARDOWN: TimeCause.TEARDOWN,
}
"""Supervise has no cause: its time outside of attempts is idle. Certify comes after the bill."""


class Span(NamedTuple):
    begun_s: float
    ended_s: float
    cause: TimeCause
    interruption: int | None = None
    """Attempt whose failure caused this time."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.begun_s


Window = tuple[float, float]


class BillWindow(NamedTuple):
    """Time for which a line of the bill was up, with a share of its nodes."""

    begun_s: float
    ended_s: float
    share: Fraction = Fraction(1)


Key = tuple[TimeCause, int | None]
"""A cause, and the attempt whose failure is responsible."""


@dataclass(frozen=True)
class TimeLedger:
    spans: tuple[Span, ...]
    """They cover the paid time without gap or overlap."""
    paid: Window | None
    windows: dict[str, tuple[BillWindow, ...]]
    """Line of the plan's cost -> times at which it was up."""
    lines: tuple[CostLine, ...]
    tallies: dict[tuple[BillWindow, ...], dict[Key, int]]
    """Set of windows -> microseconds by cause, with the share of the nodes that were up; whole numbers, so that sums of
    parts equal the whole."""

    @property
    def paid_s(self) -> float:
        return micro(self.paid[1]) / 1e6 - micro(self.paid[0]) / 1e6 if self.paid else 0.0

    @property
    def gpu_up(self) -> tuple[Window, ...]:
        """Windows with all or some of the GPU nodes."""
        joint: list[Window] = []
        for window in next((self.windows[line.name] for line in self.lines if line.gpu), ()):
            if joint and joint[-1][1] == window.begun_s:
                joint[-1] = (joint[-1][0], window.ended_s)
            else:
                joint.append((window.begun_s, window.ended_s))
        return tuple(joint)

    @property
    def gpu_s(self) -> float:
        return sum(end - begin for begin, end in self.gpu_up)

    def micros(self, cause: TimeCause, interruption: int | None = None) -> int:
        """Return the paid time of a cause, or of its part that one attempt's failure caused."""
        return _micros_of(self.tallies.get((BillWindow(*self.paid),), {}) if self.paid else {}, cause, interruption)

    def seconds(self, cause: TimeCause) -> float:
        return self.micros(cause) / 1e6

    def usd(self, cause: TimeCause, interruption: int | None = None) -> Decimal:
        """Return the exact cost."""
        return sum(
            (
                price(line, _micros_of(self.tallies[self.windows[line.name]], cause, interruption))
                for line in self.lines
                if self.windows[line.name]
            ),
            Decimal(0),
        )

    def line_micros(self, line: CostLine) -> int:
        """Return the time for which a line of the bill was up."""
        return sum(self.tallies.get(self.windows[line.name], {}).values())


def micro(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _micros_of(tally: dict[Key, int], cause: TimeCause, interruption: int | None) -> int:
    return sum(
        count
        for (row_cause, attempt), count in tally.items()
        if row_cause is cause and (interruption is None or attempt == interruption)
    )


def _tally(spans: Sequence[Span], windows: Sequence[BillWindow]) -> dict[Key, int]:
    """Return the time by cause within windows; both inputs are sorted and have no overlaps."""
    tally: dict[Key, int] = {}
    edge = 0
    edges = [
        (micro(slot.begun_s), micro(slot.ended_s), slot.share.numerator, slot.share.denominator) for slot in windows
    ]
    for begun_s, ended_s, cause, interruption in spans:
        begin, end = round(begun_s * 1_000_000), round(ended_s * 1_000_000)
        while edge < len(edges) and edges[edge][1] <= begin:
            edge += 1
        index = edge
        while index < len(edges) and edges[index][0] < end:
            window_begin, shut, nodes, node_count = edges[index]
            overlap = (end if end < shut else shut) - (begin if begin > window_begin else window_begin)
            key = (cause, interruption)
            tally[key] = tally.get(key, 0) + overlap * nodes // node_count
            index += 1
    return tally


def ledger(record: Record, stages: Sequence[StageTime], attempts: Sequence[AttemptTime], log: TrainerLog) -> TimeLedger:
    lines = tuple(line for line in record.plan.cost if line.usd_per_hour)
    windows = {line.name: _windows(record, record.reading.windows[Billing.of(line)]) for line in lines}
    bounds = paid_window(record, stages, [slot for slots in windows.values() for slot in slots])
    if bounds is None:
        return TimeLedger((), None, {line.name: () for line in lines}, lines, {})
    claims = [
        _steps(log),
        _in_place(record),
        _attempts(record, attempts),
        _stages(stages),
        [Span(*bounds, TimeCause.IDLE)],
    ]
    spans: list[Span] = []
    for claim in claims:
        spans = overlay(spans, claim)
    clips = (
        Span(max(span.begun_s, bounds[0]), min(span.ended_s, bounds[1]), span.cause, span.interruption)
        for span in spans
    )
    rows = tuple(span for span in clips if span.seconds > 0)
    tallies = {window: _tally(rows, window) for window in {(BillWindow(*bounds),), *windows.values()}}
    return TimeLedger(rows, bounds, windows, lines, tallies)


def paid_window(record: Record, stages: Sequence[StageTime], windows: Sequence[BillWindow]) -> Window | None:
    """Return the time from the first bake, or the first bill, to the end of the teardown, or to now if there is none;
    to the last bill if that is later, as after a driver's clock that was set back."""
    bakes = [row.begun_s for row in stages if row.stage == Stage.BAKE]
    begin = min([*bakes, *(window.begun_s for window in windows)], default=None)
    if begin is None:
        return None
    teardown_s = max((r.ended_s for r in stages if r.stage == Stage.TEARDOWN and r.ending == "finished"), default=None)
    bills = (window.ended_s for window in windows)
    return begin, record.now_s if teardown_s is None else max([teardown_s, *bills])


def overlay(top: Sequence[Span], bottom: Sequence[Span]) -> list[Span]:
    """Return all of `top`, and the parts of `bottom` between; both are sorted and have no overlaps."""
    result, index_of_top = list(top), 0
    for span in bottom:
        begin_s = span.begun_s
        while index_of_top < len(top) and top[index_of_top].ended_s <= begin_s:
            index_of_top += 1
        index = index_of_top
        while index < len(top) and top[index].begun_s < span.ended_s:
            if top[index].begun_s > begin_s:
                result.append(Span(begin_s, top[index].begun_s, span.cause, span.interruption))
            begin_s = max(begin_s, top[index].ended_s)
            index += 1
        if begin_s < span.ended_s:
            result.append(Span(begin_s, span.ended_s, span.cause, span.interruption))
    return sorted(result, key=lambda span: span.begun_s)


def _windows(record: Record, windows: Sequence[meter.Up]) -> tuple[BillWindow, ...]:
    return tuple(BillWindow(record.seconds(begin), record.seconds(end), share) for begin, end, share in windows)


def _steps(log: TrainerLog) -> list[Span]:
    """Return steps and evaluations with the times of their own lines, without overlaps."""
    rows: list[Span] = []
    for attempt, lines in log.steps.items():
        for line in lines:
            cause = TimeCause.REDO if line.repeated else TimeCause.USEFUL
            failed_attempt = attempt - 1 if line.repeated and not line.generation else None
            rows.append(Span(line.begun_s, line.ended_s, cause, failed_attempt))
    rows += [Span(x.ended_s - x.seconds, x.ended_s, TimeCause.EVALUATION) for x in log.evaluations]
    return _disjoint(rows)


def _in_place(record: Record) -> list[Span]:
    """Return the times from a process's death to the first new step in the same pods."""
    restarts = [(e.at, e.payload) for e in record.events if isinstance(e.payload, AttemptRestartedInPlace)]
    ends = [(record.seconds(time), restart.seconds or 0.0) for time, restart in restarts]
    return _disjoint(Span(end - seconds, end, TimeCause.STARTUP) for end, seconds in ends)


def _disjoint(rows: Iterable[Span]) -> list[Span]:
    """Sort by end, and begin each span at the end of the previous one, if not later."""
    clean: list[Span] = []
    for row in sorted(rows, key=lambda span: span.ended_s):
        begin = max(row.begun_s, clean[-1].ended_s) if clean else row.begun_s
        if row.ended_s > begin:
            clean.append(Span(begin, row.ended_s, row.cause, row.interruption))
    return clean


def _attempts(record: Record, attempts: Sequence[AttemptTime]) -> list[Span]:
    rows: list[Span] = []
    finish_s = training_finished_s(record)
    failed_attempt: int | None = None
    for row in attempts:
        trained_until = row.last_step_s if row.last_step_s is not None else row.ended_s
        training_s = row.first_step_s if row.first_step_s is not None else row.ended_s
        rows.append(Span(row.launched_s, training_s, TimeCause.STARTUP, failed_attempt))
        rows.append(Span(training_s, trained_until, TimeCause.SAVING))
        over_s = row.next_launch_s or finish_s or row.ended_s
        if row.failure is not None or row.next_launch_s is not None:
            failed_attempt = row.attempt
            rows.append(Span(trained_until, over_s, TimeCause.REPLACE, failed_attempt))
        else:
            failed_attempt = None
            rows.append(Span(trained_until, over_s, TimeCause.SAVING))
    zero = [record.seconds(e.at) for e in record.events if isinstance(e.payload, NodesAtZero)]
    if finish_s is not None and (ends := [at_zero_s for at_zero_s in zero if at_zero_s >= finish_s]):
        rows.append(Span(finish_s, ends[0], TimeCause.ARCHIVE))
    return _disjoint(rows)


def _stages(stages: Sequence[StageTime]) -> list[Span]:
    return _disjoint(
        Span(row.begun_s, row.ended_s, cause)
        for row in stages
        if (cause := _STAGE_CAUSE.get(Stage(row.stage))) is not None
    )
