"""Steps, evaluations and repeats from the trainer's log lines. One series per attempt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from infra.record import trainer_lines as lines
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.training import Relaunched, WatchRaised
from infra.report.model import Evaluated, Losses, LossPoint, Repeats, WatchAlarm
from infra.report.record import Record

_POD = re.compile(
    r"-a(?P<attempt>\d+)-(?:gang-0-(?P<index>\d+)(?:-[a-z0-9]+)?|(?P<first>launcher)-[a-z0-9]+|worker-(?P<later>\d+))$"
)
READ = 2
"""Pods read per attempt: rank 0's, and the next one's in case a killed node lost lines. The loss in every pod's log is
the same mean over all ranks. If neither told a step, the others are read until one did, the last one first: that is
where some programs print."""
MOST_POINTS = 3000
"""Points of a curve, approximately, for all attempts together."""
_STEP = b'"event": "step"'


class LoggedStep(NamedTuple):
    attempt: int
    step: int
    loss: float | None
    """None: the job did not tell it."""
    ended_s: float
    """Seconds since the campaign began."""
    seconds: float
    """Of one step."""
    repeated: bool = False
    norm: float | None = None
    """Of all gradients before clipping; None in logs of earlier versions, and of jobs of one's own."""
    generation: int = 0
    """Restarts in place before it, within its attempt."""
    steps: int = 1
    """Steps that it tells of: more than one for a job that tells of every tenth, say."""

    @property
    def begun_s(self) -> float:
        return self.ended_s - self.seconds * self.steps


class EvaluationLine(NamedTuple):
    attempt: int
    step: int
    loss: float
    ended_s: float
    seconds: float


@dataclass(frozen=True)
class TrainerLog:
    steps: dict[int, tuple[LoggedStep, ...]] = field(default_factory=dict)
    """Attempt -> its steps in order."""
    evaluations: tuple[EvaluationLine, ...] = ()
    restored: dict[int, int] = field(default_factory=dict)
    """Attempt -> the step that it resumed from; 0 for a fresh start."""
    parameters: int | None = None


class PodPlace(NamedTuple):
    attempt: int
    node: int
    """Its index in the gang."""


def place_of(pod: str) -> PodPlace | None:
    """Return a pod's place by its name: a JobSet's, or an MPIJob's, whose launcher is the first; None for others."""
    match = _POD.search(pod)
    if match is None:
        return None
    index = 0 if match["first"] else int(match["index"] or 0) if match["later"] is None else int(match["later"]) + 1
    return PodPlace(int(match["attempt"]), index)


def pods_to_read(names: Iterable[str]) -> list[str]:
    """Return the names to read: the first pods of each attempt, by index in the gang."""
    return [name for pods in _by_attempt(names) for name in pods[:READ]]


def logs_to_keep(names: Iterable[str], fetch: Callable[[list[str]], Mapping[str, bytes]]) -> dict[str, bytes]:
    """Return the logs of the first pods of each attempt, and of the pod that told its steps."""
    names = tuple(names)
    logs = dict(fetch(pods_to_read(names)))
    for pods in _by_attempt(names):
        unread = [name for name in reversed(pods) if name not in logs]
        while unread and not any(_STEP in logs[name] for name in pods if name in logs):
            logs |= fetch(unread[:READ])
            unread = unread[READ:]
    return logs


def _by_attempt(names: Iterable[str]) -> list[list[str]]:
    """Return each attempt's pods by index in the gang."""
    places: dict[int, list[tuple[int, str]]] = {}
    for name in names:
        if (place := place_of(name)) is not None:
            places.setdefault(place.attempt, []).append((place.node, name))
    return [[name for _, name in sorted(pods)] for pods in places.values()]


def read(record: Record) -> TrainerLog:
    """Return the lines of all attempts; of a step that several lines tell of, the first with a loss counts."""
    steps: dict[tuple[int, int, int], LoggedStep] = {}
    evaluations: dict[tuple[int, int], EvaluationLine] = {}
    resume_steps: dict[int, int] = {}
    parameters = None
    start = (record.begun_at or record.at).timestamp()
    for attempt, time, line in _lines(record):
        end_s = time - start
        if line.event in ("restored", "started_fresh"):
            resume_steps.setdefault(attempt, line.step)
            parameters = line.parameters or parameters
        elif line.event == "step":
            generation = line.generation or 0
            row = LoggedStep(attempt, line.step, line.loss, end_s, line.seconds, norm=line.norm, generation=generation)
            known_step = steps.get(key := (attempt, generation, line.step))
            if known_step is None or (known_step.loss is None and line.loss is not None):
                steps[key] = row
        elif line.loss is not None:
            evaluation = EvaluationLine(attempt, line.step, line.loss, end_s, line.seconds)
            evaluations.setdefault((attempt, line.step), evaluation)
    series = _mark_repeats(steps)
    return TrainerLog(
        # A trainer of ours tells of every step: one that is missing was lost with its line, and its time is not known.
        steps=series if record.spec.runtime.is_built_in else _with_steps_between(series, resume_steps),
        evaluations=tuple(evaluations[key] for key in sorted(evaluations)),
        restored=resume_steps,
        parameters=parameters,
    )


def losses(log: TrainerLog) -> tuple[Losses, ...]:
    """Return the losses, by attempt; steps without one are left out, and attempts without any."""
    return _series(log, lambda line: line.loss)


def norms(log: TrainerLog) -> tuple[Losses, ...]:
    """Return the norms of the gradients, by attempt; empty where none was logged."""
    return _series(log, lambda line: line.norm)


def _series(log: TrainerLog, value_of: Callable[[LoggedStep], float | None]) -> tuple[Losses, ...]:
    curves = []
    for attempt, rows in _curves(log):
        values = [(line, value) for line in rows if (value := value_of(line)) is not None]
        points = [LossPoint(step=line.step, loss=value, repeated=line.repeated) for line, value in values]
        if points:
            curves.append(Losses(attempt=attempt, points=tuple(points), steps=len(points)))
    return tuple(curves)


def alarms(record: Record) -> tuple[WatchAlarm, ...]:
    payloads = [event.payload for event in record.events]
    return tuple(
        WatchAlarm(step=alarm.step, detector=str(alarm.detector), text=str(alarm.text), did=str(alarm.did))
        for alarm in payloads
        if isinstance(alarm, WatchRaised) and alarm.step is not None
    )


def evaluations_of(log: TrainerLog) -> tuple[Evaluated, ...]:
    return tuple(Evaluated(attempt=x.attempt, step=x.step, loss=x.loss) for x in log.evaluations)


def relaunched_after(record: Record) -> frozenset[int]:
    """Return the newest attempt at each relaunch: a person changed something, so later steps are another training."""
    newest, ends = 0, set[int]()
    for event in record.events:
        if isinstance(event.payload, AttemptLaunched):
            newest = event.payload.attempt
        elif isinstance(event.payload, Relaunched):
            ends.add(newest)
    return frozenset(ends)


def repeats(log: TrainerLog, relaunched: frozenset[int] = frozenset()) -> Repeats:
    """Compare every repeated step with its first run since the last relaunch: equal means all 64 bits are equal."""
    losses: dict[int, float | None] = {}
    repeated_steps: list[int] = []
    count, comparisons, equal, difference = 0, 0, 0, 0.0
    for attempt, rows in sorted(log.steps.items()):
        if any(end < attempt for end in relaunched):
            losses, relaunched = {}, frozenset(end for end in relaunched if end >= attempt)
        for line in rows:
            if line.step not in losses:
                losses[line.step] = line.loss
                continue
            repeated_steps.append(line.step)
            count += line.steps
            if line.loss is not None and (loss_of_first := losses[line.step]) is not None:
                comparisons += 1
                equal += line.loss.hex() == loss_of_first.hex()
                difference = max(difference, abs(line.loss - loss_of_first))
    return Repeats(
        steps=count,
        uncompared=count - comparisons,
        equal=equal,
        first_step=min(repeated_steps, default=None),
        last_step=max(repeated_steps, default=None),
        greatest_difference=difference,
    )


def _lines(record: Record) -> Iterator[tuple[int, float, lines.StepLine]]:
    """Yield what is ours of each pod's log: of a job's pod, the lines with its supervisor's mark, if there are any."""
    pods = [(place, name) for name in record.logs if (place := place_of(name)) is not None]
    for place, name in sorted(pods):
        texts = record.logs[name].split("\n")
        marks = record.spec.runtime.has_marks and any(text.startswith(lines.MARK) for text in texts)
        for text in texts:
            # A dying node may have cut a line short.
            event = lines.event_of(text, marks)
            line = None if event is None else lines.line_of(event)
            if line is not None and line.time is not None:
                yield place.attempt, line.time, line


def _curves(log: TrainerLog) -> Iterator[tuple[int, tuple[LoggedStep, ...]]]:
    """Yield each attempt's steps for a curve: each step once, as it was first."""
    for attempt, rows in log.steps.items():
        line_of_step = {line.step: line for line in reversed(rows)}
        yield attempt, tuple(line_of_step[step] for step in sorted(line_of_step))


def _mark_repeats(steps: dict[tuple[int, int, int], LoggedStep]) -> dict[int, tuple[LoggedStep, ...]]:
    """Return the steps by attempt, marked as repeated if an earlier attempt or generation had finished them."""
    known_steps: set[int] = set()
    series: dict[int, list[LoggedStep]] = {}
    for (attempt, _, step), line in sorted(steps.items()):
        series.setdefault(attempt, []).append(line._replace(repeated=True) if step in known_steps else line)
        known_steps.add(step)
    return {attempt: tuple(rows) for attempt, rows in series.items()}


def _with_steps_between(
    series: Mapping[int, tuple[LoggedStep, ...]], resume_steps: Mapping[int, int]
) -> dict[int, tuple[LoggedStep, ...]]:
    """Return the lines with the steps since the one before, of a job that does not tell of each. An attempt's first
    line says nothing of one step's time, for it covers the job's start: the next line's counts."""
    known_steps: set[int] = set()
    filled_series: dict[int, tuple[LoggedStep, ...]] = {}
    for attempt, rows in series.items():
        known_steps |= {resume_steps[attempt]} if attempt in resume_steps else set()
        lines = []
        for index, line in enumerate(rows):
            previous = max((step for step in known_steps if step < line.step), default=line.step - 1)
            seconds = min(line.seconds, rows[1].seconds) if index == 0 and len(rows) > 1 else line.seconds
            lines.append(line._replace(steps=line.step - previous, seconds=seconds))
            known_steps.add(line.step)
        filled_series[attempt] = tuple(lines)
    return filled_series


def thin(series: Sequence[Losses], limit: int = MOST_POINTS) -> tuple[Losses, ...]:
    """Return short series unchanged; of long ones each piece keeps its lowest and highest value, so nothing is hidden.
    No piece spans repeated and new steps."""
    total = sum(len(row.points) for row in series)
    if total <= limit:
        return tuple(series)
    size = -(-2 * total // limit)
    return tuple(row.model_copy(update={"points": tuple(_extremes(row.points, size))}) for row in series)


def _extremes(points: Sequence[LossPoint], size: int) -> Iterator[LossPoint]:
    for _, group in groupby(points, key=lambda point: point.repeated):
        run = list(group)
        for begin in range(0, len(run), size):
            piece = run[begin : begin + size]
            low, high = min(piece, key=lambda p: p.loss), max(piece, key=lambda p: p.loss)
            ends = {piece[0].step: piece[0]} if begin == 0 else {}
            ends |= {run[-1].step: run[-1]} if begin + size >= len(run) else {}
            yield from sorted((ends | {low.step: low, high.step: high}).values(), key=lambda p: p.step)
