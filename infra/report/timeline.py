"""Times of stages, attempts and other events, in seconds since the campaign began."""

from __future__ import annotations

from datetime import datetime

from infra.record.events import Stage
from infra.record.payloads.attempts import (
    AttemptEnded,
    AttemptLaunched,
    AttemptRunning,
    NodeQuarantined,
    NodeVerdict,
    short,
)
from infra.record.payloads.checkpoints import CheckpointFetched, CheckpointRefused
from infra.record.payloads.stages import DriverTookOver, StageFailed, StageFinished, StageStarted
from infra.record.payloads.training import TrainingFinished
from infra.report.model import AttemptTime, Gap, Mark, StageTime
from infra.report.record import Record
from infra.report.trainer_log import TrainerLog


def stages(record: Record) -> tuple[StageTime, ...]:
    """Return every run of every stage but the report's. The next start cuts off a stage without an end."""
    rows: list[StageTime] = []
    begun: tuple[str, float] | None = None
    for event in record.events:
        now = record.seconds(event.at)
        payload = event.payload
        if begun is not None and isinstance(payload, StageStarted | DriverTookOver):
            rows.append(StageTime(stage=begun[0], begun_s=begun[1], ended_s=now, ending="cut off"))
            begun = None
        match payload:
            case StageStarted(stage=stage):
                begun = (str(stage), now)
            case StageFinished() if begun is not None:
                rows.append(StageTime(stage=begun[0], begun_s=begun[1], ended_s=now, ending="finished"))
                begun = None
            case StageFailed(error=error) if begun is not None:
                row = StageTime(stage=begun[0], begun_s=begun[1], ended_s=now, ending="failed", error=str(error))
                rows.append(row)
                begun = None
    if begun is not None:
        rows.append(StageTime(stage=begun[0], begun_s=begun[1], ended_s=record.now_s, ending="running"))
    return tuple(row for row in rows if row.stage != Stage.REPORT)


def attempts(record: Record, log: TrainerLog) -> tuple[AttemptTime, ...]:
    launches = [(event.at, event.payload) for event in record.events if isinstance(event.payload, AttemptLaunched)]
    rows = []
    for index, (at, launch) in enumerate(launches):
        following = launches[index + 1][0] if index + 1 < len(launches) else None
        rows.append(_attempt(record, log, launch, at, following))
    return tuple(rows)


def training_finished_s(record: Record) -> float | None:
    return next((record.seconds(e.at) for e in record.events if isinstance(e.payload, TrainingFinished)), None)


def marks(record: Record) -> tuple[Mark, ...]:
    found = []
    for event in record.events:
        now = record.seconds(event.at)
        match event.payload:
            case NodeQuarantined(node=node):
                found.append(Mark(at_s=now, kind="quarantine", label=f"node replaced: {short(node)}"))
            case CheckpointRefused(step=step, tier=tier):
                found.append(Mark(at_s=now, kind="refused", label=f"checkpoint of step {step} refused on {tier}"))
            case CheckpointFetched(step=step):
                found.append(Mark(at_s=now, kind="fetched", label=f"step {step} brought back from S3"))
            case DriverTookOver():
                found.append(Mark(at_s=now, kind="takeover", label="driver took over"))
            case NodeVerdict(node=node, fit=False):
                found.append(Mark(at_s=now, kind="unfit", label=f"{short(node)} unfit"))
    return tuple(found)


def gaps(rows: tuple[StageTime, ...], now_s: float, *, over: bool) -> tuple[Gap, ...]:
    """Return times without a running stage, up to now unless the campaign is `over`; short ones are omitted."""
    found: list[Gap] = []
    least = max(1.0, 0.01 * max((row.ended_s for row in rows), default=0.0))
    last: StageTime | None = None
    for row in rows:
        if last is not None and row.begun_s - last.ended_s >= least:
            found.append(Gap(begun_s=last.ended_s, ended_s=row.begun_s, why=_why_idle(last)))
        last = row if last is None or row.ended_s >= last.ended_s else last
    if last is not None and not over and last.ending != "running" and now_s - last.ended_s >= least:
        found.append(Gap(begun_s=last.ended_s, ended_s=now_s, why=f"{_why_idle(last)}, up to now"))
    return tuple(found)


def _why_idle(last: StageTime) -> str:
    match last.ending:
        case "failed":
            return f"{last.stage} had failed and nobody had continued the campaign"
        case "cut off":
            return f"the driver vanished during {last.stage}"
    return f"no driver ran after {last.stage}"


def _attempt(
    record: Record, log: TrainerLog, launch: AttemptLaunched, at: datetime, following: datetime | None
) -> AttemptTime:
    """Return the times of an attempt. `at`: when it was launched; `following`: when the next one was."""
    number = launch.attempt
    later = [(event.at, event.payload) for event in record.events if event.at >= at]
    ends = [(then, end) for then, end in later if isinstance(end, AttemptEnded) and end.attempt == number]
    runs = [run for _, run in later if isinstance(run, AttemptRunning) and run.attempt == number]
    over, ended = ends[0] if ends else (following, None)
    steps = log.steps.get(number, ())
    again = [line for line in steps if line.repeated]
    finished = training_finished_s(record)
    launched, now = record.seconds(at), record.now_s
    ended_s = record.seconds(over) if over is not None else finished if finished is not None else now
    return AttemptTime(
        attempt=number,
        from_step=log.restored.get(number, max(launch.committed_step, 0)),
        launched_s=launched,
        first_step_s=max(steps[0].begun_s, launched) if steps else None,
        redone_s=again[-1].ended_s if again else None,
        last_step_s=min(steps[-1].ended_s, max(ended_s, launched)) if steps else None,
        ended_s=ended_s,
        next_launch_s=record.seconds(following) if following is not None else None,
        steps=sum(line.steps for line in steps),
        repeated=sum(line.steps for line in again),
        last_step=steps[-1].step if steps else (ended.step or 0) if ended else 0,
        nodes=tuple(map(short, runs[0].nodes)) if runs else (),
        failure=ended.failure if ended is not None else None,
        detail=ended.detail if ended is not None else None,
        running=over is None and finished is None,
    )
