"""Times of stages, attempts and other events, in seconds since the campaign began."""

from __future__ import annotations

from datetime import datetime

from infra.record.events import Stage
from infra.record.payloads.attempts import (
    AttemptEnded,
    AttemptLaunched,
    AttemptRunning,
    GangResized,
    NodeQuarantined,
    NodeVerdict,
    short,
)
from infra.record.payloads.checkpoints import CheckpointFetched, CheckpointRefused
from infra.record.payloads.stages import DriverTookOver, StageFailed, StageFinished, StageStarted
from infra.record.payloads.training import TrainingFinished
from infra.report.model import AttemptTime, Gap, Mark, StageRun
from infra.report.record import Record
from infra.report.trainer_log import TrainerLog


def stages(record: Record) -> tuple[StageRun, ...]:
    """Return every run of every stage but the report's. The next start cuts off a stage without an end."""
    rows: list[StageRun] = []
    start: tuple[str, float] | None = None
    for event in record.events:
        now = record.seconds(event.at)
        payload = event.payload
        if start is not None and isinstance(payload, StageStarted | DriverTookOver):
            rows.append(StageRun(stage=start[0], begun_s=start[1], ended_s=now, ending="cut off"))
            start = None
        match payload:
            case StageStarted(stage=stage):
                start = (str(stage), now)
            case StageFinished() if start is not None:
                rows.append(StageRun(stage=start[0], begun_s=start[1], ended_s=now, ending="finished"))
                start = None
            case StageFailed(error=error) if start is not None:
                row = StageRun(stage=start[0], begun_s=start[1], ended_s=now, ending="failed", error=str(error))
                rows.append(row)
                start = None
    if start is not None:
        rows.append(StageRun(stage=start[0], begun_s=start[1], ended_s=record.now_s, ending="running"))
    return tuple(row for row in rows if row.stage != Stage.REPORT)


def attempts(record: Record, log: TrainerLog) -> tuple[AttemptTime, ...]:
    launches = [(event.at, event.payload) for event in record.events if isinstance(event.payload, AttemptLaunched)]
    rows = []
    for index, (launched_at, launch) in enumerate(launches):
        following = launches[index + 1][0] if index + 1 < len(launches) else None
        rows.append(_attempt(record, log, launch, launched_at, following))
    return tuple(rows)


def training_finished_s(record: Record) -> float | None:
    return next((record.seconds(e.at) for e in record.events if isinstance(e.payload, TrainingFinished)), None)


def marks(record: Record) -> tuple[Mark, ...]:
    rows = []
    for event in record.events:
        now = record.seconds(event.at)
        match event.payload:
            case NodeQuarantined(node=node):
                rows.append(Mark(at_s=now, kind="quarantine", label=f"node replaced: {short(node)}"))
            case GangResized(attempt=number, nodes=nodes, of=node_count):
                rows.append(Mark(at_s=now, kind="resized", label=f"attempt {number} on {nodes} of {node_count} nodes"))
            case CheckpointRefused(step=step, tier=tier):
                rows.append(Mark(at_s=now, kind="refused", label=f"checkpoint of step {step} refused on {tier}"))
            case CheckpointFetched(step=step):
                rows.append(Mark(at_s=now, kind="fetched", label=f"step {step} brought back from S3"))
            case DriverTookOver():
                rows.append(Mark(at_s=now, kind="takeover", label="driver took over"))
            case NodeVerdict(node=node, fit=False):
                rows.append(Mark(at_s=now, kind="unfit", label=f"{short(node)} unfit"))
    return tuple(rows)


def gaps(rows: tuple[StageRun, ...], now_s: float, *, is_over: bool) -> tuple[Gap, ...]:
    """Return times without a running stage, up to now unless the campaign is `is_over`; short ones are omitted."""
    rows_without: list[Gap] = []
    threshold_s = max(1.0, 0.01 * max((row.ended_s for row in rows), default=0.0))
    newest: StageRun | None = None
    for row in rows:
        if newest is not None and row.begun_s - newest.ended_s >= threshold_s:
            rows_without.append(Gap(begun_s=newest.ended_s, ended_s=row.begun_s, why=_why_idle(newest)))
        newest = row if newest is None or row.ended_s >= newest.ended_s else newest
    if newest is not None and not is_over and newest.ending != "running" and now_s - newest.ended_s >= threshold_s:
        rows_without.append(Gap(begun_s=newest.ended_s, ended_s=now_s, why=f"{_why_idle(newest)}, up to now"))
    return tuple(rows_without)


def _why_idle(stage_time: StageRun) -> str:
    match stage_time.ending:
        case "failed":
            return f"{stage_time.stage} had failed and nobody had continued the campaign"
        case "cut off":
            return f"the driver vanished during {stage_time.stage}"
    return f"no driver ran after {stage_time.stage}"


def _attempt(
    record: Record, log: TrainerLog, launch: AttemptLaunched, launched_at: datetime, following: datetime | None
) -> AttemptTime:
    """Return the times of an attempt. `launched_at`: when it was launched; `following`: when the next one was."""
    number = launch.attempt
    events_after = [(event.at, event.payload) for event in record.events if event.at >= launched_at]
    ends = [(time, end) for time, end in events_after if isinstance(end, AttemptEnded) and end.attempt == number]
    runs = [run for _, run in events_after if isinstance(run, AttemptRunning) and run.attempt == number]
    ended_at, end_event = ends[0] if ends else (following, None)
    steps = log.steps.get(number, ())
    repeats = [line for line in steps if line.repeated]
    finish_s = training_finished_s(record)
    launched_at_s, now = record.seconds(launched_at), record.now_s
    ended_s = record.seconds(ended_at) if ended_at is not None else finish_s if finish_s is not None else now
    return AttemptTime(
        attempt=number,
        from_step=log.restored.get(number, max(launch.committed_step, 0)),
        launched_s=launched_at_s,
        first_step_s=max(steps[0].begun_s, launched_at_s) if steps else None,
        redone_s=repeats[-1].ended_s if repeats else None,
        last_step_s=min(steps[-1].ended_s, max(ended_s, launched_at_s)) if steps else None,
        ended_s=ended_s,
        next_launch_s=record.seconds(following) if following is not None else None,
        steps=sum(line.steps for line in steps),
        repeated=sum(line.steps for line in repeats),
        last_step=steps[-1].step if steps else (end_event.step or 0) if end_event else 0,
        nodes=tuple(map(short, runs[0].nodes)) if runs else (),
        failure=end_event.failure if end_event is not None else None,
        detail=end_event.detail if end_event is not None else None,
        running=ended_at is None and finish_s is None,
    )
