"""Strikes with the faults that have names, undoes those that pass, and notes when the training has overcome them."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from infra.record.events import Event
from infra.record.payloads.attempts import AttemptEnded, AttemptRestartedInPlace
from infra.record.payloads.training import TrainingFinished
from infra.rehearsal.drills.moments import BEHIND, Moment, MomentKind, Moments
from infra.spec.drills.scenarios import Hand, Scenario

_ANSWERED_WITHIN_S = 120.0
Live = Mapping[str, Any]


class Injection:
    """The faults by name of one campaign."""

    def __init__(self, endpoint: str, campaign: str, read_events: Callable[[], Sequence[Event]]) -> None:
        self._endpoint, self._campaign, self._read_events = endpoint, campaign, read_events

    def strike(self, number: int, scenario: Scenario, live: Live) -> Moment:
        """Strike, or say that it is time to, if the hand is outside of the site. Raises `OSError` where a hand is
        refused, and `LookupError` while the gang has no such pod."""
        step, rate, places = int(live["step"]), float(live["usd_per_hour"]), self._places(live, scenario)
        at = _now()  # what follows may be in the record before the hands have answered
        answers = [self._lay(hand, places) for hand in scenario.hands]
        kind: MomentKind = "struck" if scenario.driver is None else "due"
        return Moment(
            fault=number, kind=kind, at=at, step=step, usd_per_hour=rate, places=places, answer="; ".join(answers)
        )

    def undo(self, number: int, scenario: Scenario, struck: Moment) -> Moment | None:
        """Undo what has lasted long enough; None: nothing is due. Raises `OSError` where a hand is refused."""
        if (_now() - struck.at).total_seconds() < scenario.lasts_s:
            return None
        answers = [self._lay(hand, struck.places) for hand in scenario.undo]
        return Moment(fault=number, kind="over", at=_now(), step=struck.step, answer="; ".join(answers))

    def progress(self, number: int, scenario: Scenario, live: Live, moments: Moments) -> Moment | None:
        """Return the next of `caught-up` and `recovered`, once the record has the expected events and the figures show
        it; else None."""
        struck, end = moments[number, "struck"], moments[number, "over"]
        if scenario.expect.committed_within_s is None:
            return self._progress_of_end(number, struck)
        looked_at = datetime.fromisoformat(live["at"])
        if not live["in_flight"] or looked_at <= end.at:
            return None
        events = self._read_events() if scenario.leaves_events else ()
        later_events = [event for event in events if event.at > struck.at - BEHIND]
        if not set(scenario.expect.events) <= {event.kind for event in later_events}:
            return None
        last_step = struck.step
        if scenario.restarts:
            kinds = AttemptEnded | AttemptRestartedInPlace
            restarts = [event for event in later_events if isinstance(event.payload, kinds)]
            if not restarts or looked_at <= restarts[-1].at:
                return None
            ended_steps = (event.payload.step for event in restarts if isinstance(event.payload, AttemptEnded))
            last_step = max(last_step, *(step for step in ended_steps if step is not None), -1)
        for kind, step in (("caught-up", int(live["step"])), ("recovered", int(live["committed_step"]))):
            if (number, kind) not in moments:
                is_new = step > last_step
                return Moment(fault=number, kind=kind, at=looked_at, step=step) if is_new else None
        return None

    def _progress_of_end(self, number: int, struck: Moment) -> Moment | None:
        """Return `recovered` once the training has ended; None after a strike at the teardown."""
        finishes = [event for event in self._read_events() if isinstance(event.payload, TrainingFinished)]
        ends = [event for event in finishes if event.at > struck.at - BEHIND]
        return Moment(fault=number, kind="recovered", at=ends[0].at, step=struck.step) if ends else None

    def _places(self, live: Live, scenario: Scenario) -> dict[str, str]:
        values = [value for hand in (*scenario.hands, *scenario.undo) for value in hand.query.values()]
        if not {"{first}", "{last}"} & set(values):  # a gang that is over has no nodes
            return {"campaign": self._campaign}
        instances = {node["name"]: str(node["instance"]) for node in live["nodes"]}
        pods = sorted(live["pods"], key=lambda pod: int(pod["index"]))
        if not pods or any(pod["node"] not in instances for pod in pods):
            raise LookupError("not every pod of the gang has a node that is known")
        first_instance, last_instance = (instances[pod["node"]] for pod in (pods[0], pods[-1]))
        return {"first": first_instance, "last": last_instance, "campaign": self._campaign}

    def _lay(self, hand: Hand, places: Mapping[str, str]) -> str:
        query = urllib.parse.urlencode({name: value.format(**places) for name, value in hand.query.items()})
        body = b"" if hand.body is None else json.dumps(dict(hand.body)).encode()
        request = urllib.request.Request(f"{self._endpoint}/_site/{hand.route}?{query}", data=body, method="POST")
        with urllib.request.urlopen(request, timeout=_ANSWERED_WITHIN_S) as answer:
            return str(answer.read().decode(errors="replace"))


def _now() -> datetime:
    return datetime.now(UTC)
