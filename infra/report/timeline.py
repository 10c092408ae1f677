"""Times of stages, attempts and other events, in seconds since the campaign began."""

from __future__ import annotations

from collections.abc import Sequence

from infra.record.events import Event, Kind, Stage
from infra.report.model import AttemptTime, Gap, Mark, StageTime
from infra.report.record import Record
from infra.report.trainer_log import TrainerLog


def stages(record: Record) -> tuple[StageTime, ...]:
    """Return every run of every stage but the report's. The next start cuts off a stage without an end."""
    rows: list[StageTime] = []
    begun: tuple[str, float] | None = None
    for event in record.events:
        now = record.seconds(event.at)
        match event.kind:
            case Kind.STAGE_STARTED | Kind.DRIVER_TOOK_OVER if begun is not None:
                rows.append(StageTime(stage=begun[0], begun_s=begun[1], ended_s=now, ending="cut off"))
                begun = None
        match event.kind:
            case Kind.STAGE_STARTED:
                begun = (str(event.data["stage"]), now)
            case Kind.STAGE_FINISHED | Kind.STAGE_FAILED if begun is not None:
                failed = event.kind is Kind.STAGE_FAILED
                rows.append(
                    StageTime(
                        stage=begun[0],
                        begun_s=begun[1],
                        ended_s=now,
                        ending="failed" if failed else "finished",
                        error=str(event.data.get("error")) if failed else None,
                    )
                )
                begun = None
    if begun is not None:
        rows.append(StageTime(stage=begun[0], begun_s=begun[1], ended_s=record.now_s, ending="running"))
    return tuple(row for row in rows if row.stage != Stage.REPORT)


def attempts(record: Record, log: TrainerLog) -> tuple[AttemptTime, ...]:
    events = record.events
    launches = [event for event in events if event.kind is Kind.ATTEMPT_LAUNCHED]
    rows = []
    for index, launch in enumerate(launches):
        following = launches[index + 1] if index + 1 < len(launches) else None
        rows.append(_attempt(record, log, events, launch, following))
    return tuple(rows)


def training_finished_s(record: Record) -> float | None:
    return next((record.seconds(e.at) for e in record.events if e.kind is Kind.TRAINING_FINISHED), None)


def marks(record: Record) -> tuple[Mark, ...]:
    found = []
    for event in record.events:
        data, now = event.data, record.seconds(event.at)
        match event.kind:
            case Kind.NODE_QUARANTINED:
                found.append(Mark(at_s=now, kind="quarantine", label=f"node replaced: {short(data.get('node'))}"))
            case Kind.CHECKPOINT_REFUSED:
                label = f"checkpoint of step {data.get('step')} refused on {data.get('tier')}"
                found.append(Mark(at_s=now, kind="refused", label=label))
            case Kind.CHECKPOINT_FETCHED:
                label = f"step {data.get('step')} brought back from S3"
                found.append(Mark(at_s=now, kind="fetched", label=label))
            case Kind.DRIVER_TOOK_OVER:
                found.append(Mark(at_s=now, kind="takeover", label="driver took over"))
            case Kind.NODE_VERDICT if not data.get("fit", True):
                found.append(Mark(at_s=now, kind="unfit", label=f"{short(data.get('node'))} unfit"))
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


def short(node: object) -> str:
    """Return a node's name without its domain."""
    return str(node).split(".", 1)[0]


def _attempt(
    record: Record, log: TrainerLog, events: Sequence[Event], launch: Event, following: Event | None
) -> AttemptTime:
    number = int(launch.data["attempt"])
    mine = [event for event in events if event.data.get("attempt") == number and event.at >= launch.at]
    ended = next((event for event in mine if event.kind is Kind.ATTEMPT_ENDED), None)
    running = next((event for event in mine if event.kind is Kind.ATTEMPT_RUNNING), None)
    steps = log.steps.get(number, ())
    again = [line for line in steps if line.repeated]
    over = ended.at if ended is not None else following.at if following is not None else None
    finished = training_finished_s(record)
    launched, now = record.seconds(launch.at), record.now_s
    ended_s = record.seconds(over) if over is not None else finished if finished is not None else now
    return AttemptTime(
        attempt=number,
        from_step=log.restored.get(number, max(int(launch.data.get("committed_step", -1)), 0)),
        launched_s=launched,
        first_step_s=max(steps[0].begun_s, launched) if steps else None,
        redone_s=again[-1].ended_s if again else None,
        last_step_s=min(steps[-1].ended_s, max(ended_s, launched)) if steps else None,
        ended_s=ended_s,
        next_launch_s=record.seconds(following.at) if following is not None else None,
        steps=sum(line.steps for line in steps),
        repeated=sum(line.steps for line in again),
        last_step=steps[-1].step if steps else int(ended.data.get("step", 0)) if ended else 0,
        nodes=tuple(short(node) for node in running.data.get("nodes", ())) if running is not None else (),
        failure=ended.data.get("failure") if ended is not None else None,
        detail=ended.data.get("detail") if ended is not None else None,
        running=over is None and finished is None,
    )
