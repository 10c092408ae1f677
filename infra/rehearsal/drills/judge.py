"""Holds what a campaign's record shows of a fault against the scenario's expectation. Pure: events in, verdict out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal

from infra.record.events import Event
from infra.record.payloads.alerts import AlertFired
from infra.record.payloads.attempts import (
    AttemptEnded,
    AttemptLaunched,
    AttemptRestartedInPlace,
    NodeQuarantined,
)
from infra.record.payloads.checkpoints import CheckpointRestored
from infra.record.payloads.stages import Certified, DriverTookOver
from infra.record.payloads.training import Held, TrainingFinished
from infra.rehearsal.drills.moments import BEHIND, Moment, Moments
from infra.spec.drills.scenarios import AGAIN, Expectation, Scenario
from trainer.contract.frozen import Frozen

_SIGNS = frozenset(
    {
        "alerts.unseen", "attempt.ended", AGAIN, "checkpoint.refused", "driver.took-over", "file-system.lost", "held",
        "node.quarantined", "stage.failed",
    }
)  # fmt: skip
"""Kinds of events by which the record shows that somebody has noticed the fault. What else a scenario expects counts
too; alarms of the watch and other alerts do not, which a busy machine raises by itself."""
_OF_SEVERAL = frozenset({"RestartsRepeated"})
"""Alerts that several faults within an hour raise, whatever they are."""
_OF_RESTARTS = frozenset({"TrainingStalled", "CheckpointsLate"})
"""Alerts that a restart raises or not, by how long it takes."""
REFUSED = "refused"
"""What became of a second driver, as it must."""
_CENT = Decimal("0.01")


class DrillResult(Frozen, extra="ignore"):  # another version may have kept it
    """What one fault has led to. Seconds count from the strike, by the clock of the record."""

    fault: str
    campaign: str
    day: str
    step: int
    """The training's step at the strike, as the steward last published it."""
    sign: str = ""
    """Kind and words of the first event that shows it; empty: nothing in the record does."""
    sign_by: str = ""
    """Who wrote that event."""
    sign_s: float | None = None
    alerts: dict[str, float] = {}
    """Alert -> seconds until it was in the record."""
    action: str = "went on"
    attempts: int = 0
    failure: str | None = None
    driver_ended: bool = False
    """The driver gave up, and the same command was started again."""
    caught_up_s: float | None = None
    """Until a step was trained that had not been trained before."""
    committed_s: float | None = None
    """Until such a step was committed."""
    ended_s: float | None = None
    """Until the training has ended of itself, or, of a fault of the teardown, until nothing was left."""
    lost_steps: int = 0
    """Steps that were trained again."""
    lost_usd: Decimal = Decimal(0)
    """All nodes' price until `caught_up_s`; in a rehearsal what AWS would have billed."""
    left: tuple[str, ...] | None = None
    """Resources that the campaign left behind; None: no certificate says."""
    compared_steps: int = 0
    """Steps that its campaign trained a second time, by whichever fault, with both losses known; 0 if it lost none."""
    equal_steps: int = 0
    """Of those, the steps whose loss was the first one's, bit for bit."""
    problems: tuple[str, ...] = ()
    """Where the expectation does not hold."""


def judge(
    fault: str, number: int, scenario: Scenario, campaign: str, events: Sequence[Event], moments: Moments
) -> DrillResult:
    """Return what a fault has led to; `events` are the campaign's, in their order. Raises `KeyError` if it has not
    struck."""
    struck = moments[number, "struck"]
    bounds = [moment.at for (_, kind), moment in moments.items() if kind in ("struck", "stopping")]
    if scenario.stage == "teardown":
        bounds = []  # they strike together
    window_end = min((bound for bound in bounds if bound > struck.at), default=None)
    begin = struck.at - BEHIND
    window = [event for event in events if begin < event.at and (window_end is None or event.at < window_end)]
    ends = [event.payload for event in window if isinstance(event.payload, AttemptEnded) and event.payload.failure]
    signs = [event for event in window if _is_sign(event, scenario.expect)]
    alerts = {
        event.payload.alert: _seconds(struck, event.at)
        for event in reversed(window)
        if isinstance(event.payload, AlertFired)
    }
    caught_up, new_commit = moments.get((number, "caught-up")), moments.get((number, "recovered"))
    is_end = scenario.expect.committed_within_s is None
    lost_s = _seconds(struck, caught_up.at) if caught_up is not None and (ends or _restarts(window)) else 0.0
    result = DrillResult(
        fault=fault, campaign=campaign, day=f"{struck.at:%Y-%m-%d}", step=struck.step,
        sign=signs[0].sentence() if signs else "",
        sign_by=signs[0].writer.partition("-")[0] if signs else "",
        sign_s=_seconds(struck, signs[0].at) if signs else None,
        alerts=alerts, action=_action(window),
        attempts=len(ends), failure=ends[0].failure if ends else None,
        driver_ended=(number, "driver-ended") in moments,
        caught_up_s=None if caught_up is None else _seconds(struck, caught_up.at),
        committed_s=None if is_end or new_commit is None else _seconds(struck, new_commit.at),
        ended_s=_ended_s(struck, window, scenario) if is_end else None,
        lost_steps=_lost_steps(struck, window),
        lost_usd=(Decimal(struck.usd_per_hour) * Decimal(lost_s) / 3600).quantize(_CENT),
        left=_left(events),
    )  # fmt: skip
    kinds = {event.kind for event in window}
    pages = {e.payload.alert for e in window if isinstance(e.payload, AlertFired) and e.payload.severity == "page"}
    problems = [*_problems(scenario.expect, result, kinds, pages)]
    if scenario.driver == "SECOND" and struck.answer != REFUSED:
        problems.append(f"the second driver was not refused: {struck.answer}")
    return result.model_copy(update={"problems": tuple(problems)})


def _problems(expect: Expectation, result: DrillResult, kinds: set[str], pages: set[str]) -> Iterator[str]:
    if result.attempts < expect.attempts:
        yield f"{result.attempts} attempts ended, {expect.attempts} expected"
    if expect.failure is not None and result.failure != expect.failure:
        yield f"the failure's class is {result.failure}, {expect.failure} expected"
    if lacking := [kind for kind in expect.events if kind not in kinds]:
        yield f"no event {', '.join(lacking)}"
    if unexpected_kinds := [kind for kind in expect.absent if kind in kinds]:
        yield f"unexpected event {', '.join(unexpected_kinds)}"
    if result.driver_ended and not expect.driver_ends:
        yield "the driver gave up"
    if expect.outcome is not None and result.action != f"ended as {expect.outcome}":
        yield f"the training {result.action}, its end as {expect.outcome} expected"
    if silent := [alert for alert in expect.alerts if alert not in result.alerts]:
        yield f"the alert {', '.join(silent)} has not fired"
    quiet = _OF_SEVERAL | {*expect.alerts, *expect.tolerated} | (_OF_RESTARTS if expect.attempts else frozenset())
    if loud := sorted(pages - quiet):
        yield f"unexpected alert {', '.join(loud)}"
    for name, seconds, limit_s in (
        ("seen", result.sign_s, expect.seen_within_s),
        ("committed again", result.committed_s, expect.committed_within_s),
        ("ended", result.ended_s, expect.ends_within_s or None),
    ):
        if limit_s is not None and (seconds is None or seconds > limit_s):
            yield f"{name} {'never' if seconds is None else f'after {seconds:.0f} s'}, within {limit_s:.0f} s expected"
    if result.left is None:
        yield "no certificate says what is left"
    elif result.left:
        yield f"left behind: {', '.join(result.left)}"


def _is_sign(event: Event, expect: Expectation) -> bool:
    if isinstance(event.payload, AlertFired):
        return event.payload.alert in expect.alerts
    return event.kind in _SIGNS or event.kind in expect.events


def _action(window: Sequence[Event]) -> str:
    """Return what was done, the strongest first."""
    kinds = {type(event.payload) for event in window}
    outcomes = [event.payload.outcome for event in window if isinstance(event.payload, TrainingFinished)]
    if outcomes:
        return f"ended as {outcomes[0]}"
    if Held in kinds:
        return "held"
    if NodeQuarantined in kinds:
        return "node replaced"
    if AttemptEnded in kinds and AttemptLaunched in kinds:
        return "restarted"
    if AttemptRestartedInPlace in kinds:
        return "restarted in place"
    if DriverTookOver in kinds:
        return "driver took over"
    return "went on"


def _restarts(window: Sequence[Event]) -> bool:
    return any(isinstance(event.payload, AttemptRestartedInPlace) for event in window)


def _lost_steps(struck: Moment, window: Sequence[Event]) -> int:
    steps = [event.payload.step for event in window if isinstance(event.payload, AttemptEnded)]
    last_step = max([struck.step, *(step for step in steps if step is not None)])
    resumed_steps = [event.payload.step for event in window if isinstance(event.payload, CheckpointRestored)]
    return max(0, last_step - (resumed_steps[0] or 0)) if resumed_steps else 0


def _ended_s(struck: Moment, window: Sequence[Event], scenario: Scenario) -> float | None:
    kind = Certified if scenario.stage == "teardown" else TrainingFinished
    moments = (event.at for event in window if isinstance(event.payload, kind))
    return next((_seconds(struck, moment) for moment in moments), None)


def _left(events: Sequence[Event]) -> tuple[str, ...] | None:
    certificates = [event.payload for event in events if isinstance(event.payload, Certified)]
    if not certificates:
        return None
    certificate = certificates[-1]
    return tuple(map(str, (*certificate.found, *(f"could not look: {item}" for item in certificate.could_not_look))))


def _seconds(struck: Moment, moment: datetime) -> float:
    return max(0.0, round((moment - struck.at).total_seconds(), 1))
