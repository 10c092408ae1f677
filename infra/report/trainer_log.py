"""Steps, evaluations and repeats from the trainer's log lines. One series per attempt."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from infra.record.events import Kind
from infra.report.model import Evaluated, Losses, LossPoint, Repeats, WatchAlarm
from infra.report.record import Record

_POD = re.compile(
    r"-a(?P<attempt>\d+)-(?:gang-0-(?P<index>\d+)(?:-[a-z0-9]+)?|(?P<first>launcher)-[a-z0-9]+|worker-(?P<later>\d+))$"
)
READ = 2
"""Pods read per attempt: rank 0's, and the next one's in case a killed node lost lines. The loss in every pod's log is
the same mean over all ranks."""


class StepLine(NamedTuple):
    attempt: int
    step: int
    loss: float
    ended_s: float
    """Seconds since the campaign began."""
    seconds: float
    repeated: bool = False
    norm: float | None = None
    """Of all gradients before clipping; None in logs of earlier versions, and of jobs of one's own."""
    generation: int = 0
    """Restarts in place before it, within its attempt."""

    @property
    def begun_s(self) -> float:
        return self.ended_s - self.seconds


class EvaluationLine(NamedTuple):
    attempt: int
    step: int
    loss: float
    ended_s: float
    seconds: float


@dataclass(frozen=True)
class TrainerLog:
    steps: dict[int, tuple[StepLine, ...]] = field(default_factory=dict)
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


def pods_to_read(names: list[str]) -> list[str]:
    """Return the names to read: the first pods of each attempt, by index in the gang."""
    found: dict[int, list[tuple[int, str]]] = {}
    for name in names:
        if (place := place_of(name)) is not None:
            found.setdefault(place.attempt, []).append((place.node, name))
    return [name for pods in found.values() for _, name in sorted(pods)[:READ]]


def read(record: Record) -> TrainerLog:
    """Return the lines of all attempts; of equal lines that of the lowest pod counts."""
    steps: dict[tuple[int, int, int], StepLine] = {}
    evaluations: dict[tuple[int, int], EvaluationLine] = {}
    restored: dict[int, int] = {}
    parameters = None
    begun = (record.begun_at or record.at).timestamp()
    for attempt, line in _lines(record):
        step, seconds = line.get("step"), line.get("seconds", 0.0)
        if not isinstance(step, int) or not isinstance(line.get("time"), int | float):
            continue
        ended = line["time"] - begun
        match line["event"]:
            case "step" if _finite(line.get("loss")):
                norm = line["norm"] if _finite(line.get("norm")) else None
                generation = int(line.get("generation", 0))
                told = StepLine(attempt, step, line["loss"], ended, seconds, norm=norm, generation=generation)
                steps.setdefault((attempt, generation, step), told)
            case "evaluated" if _finite(line.get("loss")):
                evaluation = EvaluationLine(attempt, step, line["loss"], ended, seconds)
                evaluations.setdefault((attempt, step), evaluation)
            case "restored" | "started_fresh":
                restored.setdefault(attempt, step)
                parameters = line.get("parameters", parameters)
    return TrainerLog(
        steps=_marked(steps),
        evaluations=tuple(evaluations[key] for key in sorted(evaluations)),
        restored=restored,
        parameters=parameters,
    )


def losses(log: TrainerLog) -> tuple[Losses, ...]:
    return tuple(
        Losses(
            attempt=attempt,
            points=tuple(LossPoint(step=x.step, loss=x.loss, repeated=x.repeated) for x in lines),
            steps=len(lines),
        )
        for attempt, lines in _drawn(log)
    )


def norms(log: TrainerLog) -> tuple[Losses, ...]:
    """Return the norms of the gradients, by attempt; empty where none was logged."""
    found = []
    for attempt, lines in _drawn(log):
        points = [LossPoint(step=x.step, loss=x.norm, repeated=x.repeated) for x in lines if x.norm is not None]
        if points:
            found.append(Losses(attempt=attempt, points=tuple(points), steps=len(points)))
    return tuple(found)


def alarms(record: Record) -> tuple[WatchAlarm, ...]:
    return tuple(
        WatchAlarm(step=int(data["step"]), detector=data["detector"], text=data["text"], did=data["did"])
        for data in (event.data for event in record.events if event.kind is Kind.WATCH)
    )


def evaluated(log: TrainerLog) -> tuple[Evaluated, ...]:
    return tuple(Evaluated(attempt=x.attempt, step=x.step, loss=x.loss) for x in log.evaluations)


def relaunched_after(record: Record) -> frozenset[int]:
    """Return the newest attempt at each relaunch: a person changed something, so later steps are another training."""
    newest, ends = 0, set[int]()
    for event in record.events:
        if event.kind is Kind.ATTEMPT_LAUNCHED:
            newest = int(event.data["attempt"])
        elif event.kind is Kind.RELAUNCHED:
            ends.add(newest)
    return frozenset(ends)


def repeats(log: TrainerLog, relaunched: frozenset[int] = frozenset()) -> Repeats:
    """Compare every repeated step with its first run since the last relaunch: equal means all 64 bits are equal."""
    first: dict[int, float] = {}
    again: list[int] = []
    equal, difference = 0, 0.0
    for attempt, lines in sorted(log.steps.items()):
        if any(end < attempt for end in relaunched):
            first, relaunched = {}, frozenset(end for end in relaunched if end >= attempt)
        for line in lines:
            if line.step not in first:
                first[line.step] = line.loss
                continue
            again.append(line.step)
            equal += line.loss.hex() == first[line.step].hex()
            difference = max(difference, abs(line.loss - first[line.step]))
    return Repeats(
        steps=len(again),
        equal=equal,
        first_step=min(again, default=None),
        last_step=max(again, default=None),
        greatest_difference=difference,
    )


def _lines(record: Record) -> Iterator[tuple[int, dict[str, Any]]]:
    pods = [(place, name) for name in record.logs if (place := place_of(name)) is not None]
    for place, name in sorted(pods):
        for text in record.logs[name].splitlines():
            if not text.startswith("{"):
                continue
            try:
                line = json.loads(text)
            except ValueError:
                # A dying node cut the line short.
                continue
            if isinstance(line, dict) and "event" in line:
                yield place.attempt, line


def _drawn(log: TrainerLog) -> Iterator[tuple[int, tuple[StepLine, ...]]]:
    """Yield each attempt's steps for a curve: each step once, as it was first."""
    for attempt, lines in log.steps.items():
        first = {line.step: line for line in reversed(lines)}
        yield attempt, tuple(first[step] for step in sorted(first))


def _marked(steps: dict[tuple[int, int, int], StepLine]) -> dict[int, tuple[StepLine, ...]]:
    """Return the steps by attempt, marked as repeated if an earlier attempt or generation had finished them."""
    known: set[int] = set()
    series: dict[int, list[StepLine]] = {}
    for (attempt, _, step), line in sorted(steps.items()):
        series.setdefault(attempt, []).append(line._replace(repeated=True) if step in known else line)
        known.add(step)
    return {attempt: tuple(lines) for attempt, lines in series.items()}


def _finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)
