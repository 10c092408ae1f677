"""Figures that the record alone tells: the driver's stages, and the copies to S3. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from infra.monitoring.series import MetricSeries, lines
from infra.record.events import Event
from infra.record.payloads.checkpoints import CheckpointCopied, CheckpointCopyFailed
from infra.record.payloads.stages import (
    Attached,
    Closing,
    Detached,
    DriverTookOver,
    StageFailed,
    StageFinished,
    StageStarted,
)
from trainer.contract.metrics import DRIVER, METRICS, samples


class DriverStages:
    """The driver's metrics, event by event. A stage without an end lasts until the next one, or the next driver."""

    def __init__(self) -> None:
        self._seconds = dict[str, float]()
        self._running, self._begin = "", datetime.min
        self._gone = False

    def note(self, event: Event) -> bool:
        """Take an event; return whether it changes the metrics."""
        match event.payload:
            case StageStarted(stage=stage):
                self._end(event.at)
                self._running, self._begin = stage.value, event.at
                self._seconds.setdefault(stage.value, 0.0)
            case StageFinished() | StageFailed() | DriverTookOver():
                self._end(event.at)
            case Detached() | Closing():
                self._gone = True
            case Attached():
                self._gone = False
            case _:
                return False
        return True

    def _end(self, time: datetime) -> None:
        self._seconds, self._running = self._seconds_at(time), ""

    def _seconds_at(self, time: datetime) -> dict[str, float]:
        if not self._running:
            return self._seconds
        lasts_s = max(0.0, (time - self._begin).total_seconds())
        return {**self._seconds, self._running: self._seconds[self._running] + lasts_s}

    def facts(self, time: datetime) -> dict[str, Any]:
        """Return the fields of the metrics at `time`."""
        running = {stage: stage == self._running for stage in self._seconds}
        return {"stage_seconds": self._seconds_at(time), "stage_running": running, "driver_gone": self._gone}


def record_figures(events: Iterable[Event], now: datetime) -> dict[str, Any]:
    """Return the fields of the metrics that the record tells: the driver's, the number of copies to S3 by outcome, the
    step and the time of the newest one."""
    stages, outcomes, newest = DriverStages(), Counter[str](), dict[str, Any]()
    for event in events:
        stages.note(event)
        match event.payload:
            case CheckpointCopied(step=step):
                outcomes["copied"] += 1
                newest = {"copied_step": step, "copied_at": event.at}
            case CheckpointCopyFailed():
                outcomes["failed"] += 1
    return {**stages.facts(now), "copies": dict(outcomes), **newest}


def driver_lines(events: Iterable[Event], campaign: str) -> Iterator[str]:
    """Yield the driver's metrics as OpenMetrics text, a sample for each event that changes them."""
    stages, points = DriverStages(), dict[tuple[str, str], list[tuple[float, float]]]()
    labels = dict[tuple[str, str], Mapping[str, Any]]()
    for event in events:
        if not stages.note(event):
            continue
        for metric in METRICS:
            if metric.source != DRIVER:
                continue
            for own_labels, value in samples(metric, stages.facts(event.at), {"campaign": campaign}):
                key = metric.full_name, str(own_labels.get(metric.label, ""))
                labels[key] = own_labels
                points.setdefault(key, []).append((event.at.timestamp(), float(value)))
    for name in dict.fromkeys(name for name, _ in points):
        yield from lines(name, [MetricSeries(name, labels[key], points[key]) for key in points if key[0] == name])
