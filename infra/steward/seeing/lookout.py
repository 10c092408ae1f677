"""One turn of observation: ask every source, decide, publish the result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from math import inf
from typing import Any

from lightkube import Client

from infra.clock import Clock
from infra.cluster.standing.borrowed import GangNodes
from infra.cluster.steward_config import StewardConfig
from infra.console.words import plural
from infra.errors import LeaseUnproven
from infra.record import meter
from infra.record.events import CampaignState
from infra.record.figures import record_figures
from infra.record.lease import Lease
from infra.record.meter import Reading
from infra.record.objects import Unreadable
from infra.record.store import LIVE, STOP, CampaignStore
from infra.steward.clocks import CLOCKS, EVERY_S, Clocks, StoredClocks, taken_over
from infra.steward.decide import Action, History, Policy, Reboot, Replace, Wait, decide
from infra.steward.foresight.announcements import Announcements
from infra.steward.foresight.declines import Declines
from infra.steward.policy import is_withheld
from infra.steward.rules.gang_size import Room
from infra.steward.seeing.observe import Observer
from infra.steward.seeing.sources import Away, Sources
from infra.steward.seeing.views import Observation, PodView
from trainer.contract import Phase
from trainer.contract.culprit import Sign

_EVERY_S = 5.0
"""Longest time between two writes: the spent money grows while nothing else changes."""
_STEPS_EVERY_S = 2.0
"""Shortest time between two writes of which only the steps are new."""
_ASK_STOP_S = 2.0
_LATE_S = 5.0
"""Longest time without a sign of life that says nothing; of a rank, beside three steps."""
_MOST_RANKS, _LONGEST = 16, 80
"""Of one pod, that are named; and characters of how one ended."""
_ALWAYS_NEW = ("at", "spent_usd", "step_seconds", "step", "loss", "pods")


MEASURED_STEPS = 10
"""Steps after the first one that was seen, whose mean replaces the estimate: the first compiles kernels."""


class Pace:
    """The measured time of a step. It replaces the spec's estimate, of a built-in training and of any job."""

    def __init__(self) -> None:
        self._first: tuple[int, int, datetime] | None = None
        """(attempt, step, time) of the first step that was seen of the attempt."""
        self._last_step = 0
        self.mean_s: float | None = None
        """Mean seconds of a step of the attempt; None before two of them were seen."""
        self.measured_s: float | None = None
        """The same over `MEASURED_STEPS` or more, of the newest attempt that had so many."""

    def note(self, view: Observation, step: int) -> None:
        """Take the step that an observation shows."""
        self.mean_s = None
        if self._first is None or self._first[0] != view.attempt or step < self._first[1]:
            self._first = (view.attempt, step, view.now) if step > 0 else None
        if self._first is None or step == self._first[1]:
            return
        steps = step - self._first[1]
        self.mean_s = (view.now - self._first[2]).total_seconds() / steps
        if steps >= MEASURED_STEPS and step != self._last_step:  # a gang that hangs takes no longer steps
            self.measured_s = self.mean_s
        self._last_step = step


def interval_and_archive(config: StewardConfig, step_s: float) -> timedelta:
    """Return the time for one more interval of the plan's steps, `step_s` seconds each, and for the archive."""
    every_steps = config.train.checkpoint.every_steps if config.train else 0
    return timedelta(seconds=(config.workload.save_every if config.workload else every_steps) * step_s) + config.archive


class Keeper:
    def __init__(self, store: CampaignStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._stored: StoredClocks | None = None
        self._next = 0.0

    def take_over(self, state: CampaignState, attempt: int) -> Clocks:
        """Return clocks that continue the stored ones. Raises S3's errors."""
        # Of another version, or unreadable: the events still bound the durations.
        self._stored, launch_time = self._store.figures(CLOCKS, StoredClocks), None
        for record in state.attempts:
            if record.number == attempt:
                launch_time = record.launched_at
        mono, now = self._clock.monotonic(), self._clock.now()
        return taken_over(self._stored, attempt, launch_time, state.started_at, mono, now)

    def keep(self, clocks: Clocks) -> None:
        """Store changed clocks: at once the first time, then at most every `EVERY_S`. Raises S3's errors."""
        mono = self._clock.monotonic()
        stored_clocks = clocks.to_stored(mono, self._clock.now())
        if mono >= self._next and not stored_clocks.same_as(self._stored):
            self._store.put_json(CLOCKS, stored_clocks.model_dump(mode="json"))
            self._stored, self._next = stored_clocks, mono + EVERY_S


def _figures_of(pod: PodView, step_s: float | None) -> dict[str, Any]:
    """Return what people see of a pod, with those of its ranks that are late or have ended. `step_s`: seconds of a
    step; None: not known, and then no rank is late."""
    longest_s = inf if step_s is None or pod.trainer_phase is not Phase.TRAINING else 3 * step_s + _LATE_S
    ranks = {
        rank.rank: rank.end[:_LONGEST] if rank.end != Sign.RUNS else f"no sign of life for {int(rank.age_s or 0)} s"
        for rank in pod.ranks
        if rank.end != Sign.RUNS or (rank.age_s or 0) > longest_s
    }
    silent_s = 0.0 if pod.silent_for is None else pod.silent_for.total_seconds()
    return {
        **pod.model_dump(mode="json", include={"index", "name", "node", "phase", "step", "node_rank", "trainer_phase"}),
        "silent_s": int(silent_s) if silent_s > _LATE_S else 0,
        "ranks": dict(list(ranks.items())[:_MOST_RANKS]),
    }


class Live:
    def __init__(self, store: CampaignStore, steps: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`steps`: the length of the whole training."""
        self._store, self._steps, self._monotonic, self.pace = store, steps, monotonic, Pace()
        self._said, self._steps_said, self._published = "", "", float("-inf")

    def tell(self, view: Observation, action: Action, loss: float | None) -> None:
        """Write the figures when they changed, steps less often, else every few seconds. `loss`: the newest, in nats
        per token."""
        step = min((pod.step for pod in view.pods), default=0)
        self.pace.note(view, step)
        pods = [_figures_of(pod, self.pace.mean_s) for pod in view.pods]
        figures = {
            "at": view.now.isoformat(),
            "attempt": view.attempt,
            "in_flight": view.in_flight,
            "gang_nodes": view.pods_wanted,
            "step": step,
            "steps": self._steps,
            "step_seconds": self.pace.mean_s,
            "loss": loss,
            "committed_step": view.committed_step,
            "unrecognised": next((pod.unrecognised.model_dump() for pod in view.pods if pod.unrecognised), None),
            "spent_usd": round(float(view.spent_usd), 4),
            "usd_per_hour": float(view.usd_per_hour),
            "action": action.kind,
            "why": "; ".join(dict.fromkeys((action.why, *(t for t in view.troubles if t not in action.why)))),
            "pods": pods,
            "nodes": [node.model_dump(mode="json", exclude={"sick_for"}) for node in view.nodes],
        }
        rows = [{key: value for key, value in row.items() if key != "step"} for row in pods]
        steady_text = json.dumps([{key: value for key, value in figures.items() if key not in _ALWAYS_NEW}, rows])
        now, steps_text = self._monotonic(), f"{step} {loss}"
        longest_s = _STEPS_EVERY_S if steps_text != self._steps_said else _EVERY_S
        if steady_text != self._said or now - self._published > longest_s:
            self._said, self._steps_said, self._published = steady_text, steps_text, now
            self._store.put_json(LIVE, figures)


def bills(config: StewardConfig, reading: Reading) -> str:
    """Return what bills by the plan's prices, in words."""
    nodes, rate = round(reading.gpu_share * config.spec.nodes.count), reading.usd_per_hour
    node_text = f"with {plural(nodes, 'GPU node')}" if nodes else "without a GPU node"
    return f"about {rate.quantize(Decimal('0.01'))} USD/h {node_text}, until the teardown"


class Lookout:
    """Observes and decides; writes only the figures beside the record."""

    def __init__(
        self, config: StewardConfig, client: Client, nodes: GangNodes, store: CampaignStore, lease: Lease, clock: Clock
    ) -> None:
        self._store, self._lease, self._clock, self._config = store, lease, clock, config
        self.record_figures = dict[str, Any]()
        """Fields of the metrics that the record tells, read as often as the meter."""
        self.sources = Sources(clock.monotonic)
        self.observer = Observer(config, client, nodes, self._read_meter, clock, self.sources)
        self.given_back = ""
        """Reason for which the GPU nodes were given back unrecorded; empty when they were not."""
        self.announcements, self._declines = Announcements(store), Declines(config.ranks_per_node)
        self._room = Room()
        self.withheld: Action | None = None
        """What was decided in this turn, and is only said."""
        self._live, self._keeper = Live(store, config.steps, clock.monotonic), Keeper(store, clock)
        self._stop, self._stop_next = False, 0.0
        self.pace = self._live.pace
        self.interval_and_archive = config.interval_and_archive
        """By the newest measured pace."""

    def take_over(self, state: CampaignState, attempt: int) -> None:
        """Continue the predecessor's clocks. Raises S3's errors."""
        self.observer.go_on_from(self._keeper.take_over(state, attempt))
        self.announcements.take_over()

    def look(
        self,
        policy: Policy,
        history: History,
        state: tuple[int, bool, int],
        held_since: datetime | None,
        troubles: tuple[str, ...],
        loss: float | None,
        gang_nodes: int = 0,
    ) -> tuple[Observation, Action]:
        """Observe and decide. `state`: attempt, whether it is in flight, newest committed step. `gang_nodes`: nodes of
        that attempt; 0: all of the spec's. Raises `LeaseLost`."""
        self._prove()
        now = self._clock.monotonic()
        if now >= self._stop_next or self.sources.away("record"):
            with suppress(Away):
                self._stop = self.sources.ask("record", self._stop_asked)
                self._stop_next = now + _ASK_STOP_S
        attempt, in_flight, newest_step = state
        size = gang_nodes if in_flight else 0
        view = self.observer.observe(attempt, in_flight, newest_step, self._stop, held_since, size)
        all_troubles = (*troubles, *map(str, view.unseen), *filter(None, [self._clock.disagreement()]))
        further_fields = {"given_back": self.given_back, "notice_steps": dict(self.announcements.steps)}
        view = view.model_copy(update={"troubles": all_troubles, **further_fields})
        if self.sources.away("AWS"):
            view = self.announcements.remember(view)
        declines = self._declines.note(view, self.observer.statuses, self._clock.monotonic())
        view = self._room.note(self.announcements.with_news(view, self.observer.statuses, declines), policy)
        if (step_s := self._live.pace.measured_s) is not None:
            policy = policy.model_copy(update={"interval_and_archive": interval_and_archive(self._config, step_s)})
        self.interval_and_archive = policy.interval_and_archive
        action = decide(view, policy, history)
        self.withheld = None
        if self._config.spec.recovery.act == "log":
            action = self._without_what_is_withheld(action, view, policy, history)
        with suppress(Away):
            self.sources.ask("record", lambda: self._tell(view, action, loss))
        return view, action

    def _without_what_is_withheld(self, action: Action, view: Observation, policy: Policy, history: History) -> Action:
        """Return what is done under `recovery.act: log`, and remember what is not. A replacement that nobody makes
        keeps neither a first launch nor an end for want of nodes from its turn."""
        if not is_withheld(action, view, policy, history):
            return action
        self.withheld = action
        if isinstance(action, Replace | Reboot):
            follow_up = decide(view, policy.model_copy(update={"replaces": False}), history)
            if not is_withheld(follow_up, view, policy, history):
                return follow_up
        return Wait(why=f"`recovery.act: log`, so nobody does what is due, {action.kind}: {action.why}")

    def _read_meter(self) -> Reading:
        events, now = self._store.events(), self._clock.now()
        self.record_figures = record_figures(events, now)
        return meter.read(self._config.lines, events, now)

    def _stop_asked(self) -> bool:
        try:
            return self._store.get_json(STOP) is not None
        except Unreadable:
            return True  # that it is there is the request

    def _prove(self) -> None:
        """Note the record as failed when S3 does not answer for the lease."""
        try:
            self._lease.check()
        except LeaseUnproven as error:
            self.sources.note_failure("record", error)

    def _tell(self, view: Observation, action: Action, loss: float | None) -> None:
        self._lease.check()
        self._live.tell(view, action, loss)
        self._keeper.keep(self.observer.clocks)
