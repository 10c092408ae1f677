"""The number of nodes of the next gang, where `recovery.min_nodes` lets it train with fewer than all. Pure.

A gang starts with fewer nodes once a lost node had no successor for `recovery.spare_timeout`. It grows again right
after a commit, after a pause that doubles, so that nodes that come and go do not restart it for ever. Where the larger
gang never starts, it goes back to the number before.
"""

from __future__ import annotations

from datetime import timedelta

from infra.cluster.fitness import overdue
from infra.spec.sections import LIMITS_WINDOW
from infra.steward.foresight.leaving import leaving_nodes
from infra.steward.seeing.views import FailureClass, History, Observation, Policy
from trainer.contract import Phase

FIRST_PAUSE = timedelta(hours=1)
"""Shortest time between two ends of an attempt for a larger gang: each costs one restart. It doubles with each growth
of the last 24 hours, since a node that comes and goes also costs a node loss each time."""
_ENDING = (Phase.EVALUATING, Phase.FINISHING)
_TWO = 2


def short_for(view: Observation, history: History) -> timedelta:
    """Return how long the next gang has lacked nodes: after one that trained with fewer, since its end. The wait for a
    reboot does not count; until it is over the result is zero."""
    lasts = view.since_short or timedelta()
    if history.attempts and history.attempts[-1].nodes:
        lasts = min(lasts, view.now - history.attempts[-1].ended_at)
    fit_instances = {node.instance for node in view.nodes if node.fit}
    for instance, wait_end in history.reboots.items():
        if instance not in fit_instances:
            lasts = min(lasts, max(timedelta(), view.now - wait_end))
    return lasts


def smaller(view: Observation, policy: Policy, history: History) -> int:
    """Return the number of nodes with which the gang starts although some are lacking; 0 while it waits for them. It
    does not wait where as many are fit as the last attempt had, unless a fault is so new that it may still pass."""
    size = _largest(policy, sum(node.fit for node in view.nodes))
    is_in_doubt = any(node.suspected and not overdue(node.sick_for) for node in history.settled_nodes(view))
    lost_none = bool(history.attempts) and 0 < history.attempts[-1].nodes <= size and not is_in_doubt
    return size if lost_none or short_for(view, history) > policy.spare_timeout else 0


def without_sick(view: Observation, policy: Policy) -> int:
    """Return the number of nodes with which the gang starts at once beside sick nodes that are not replaced; 0 where
    less than half of it would be left: so many sick nodes may share a cause that is not theirs."""
    size = _largest(policy, sum(node.fit for node in view.nodes))
    return size if 2 * size >= view.nodes_wanted else 0


def before_growth(view: Observation, history: History) -> int:
    """Return the number of nodes that trained before a growth whose larger gang never started; 0 where the last attempt
    was no such gang, or so many nodes are not fit. On a cluster that others use a node may be fit and full."""
    if len(history.attempts) < _TWO:
        return 0
    sound_attempt, last_attempt = history.attempts[-_TWO:]
    never_started = last_attempt.failure is FailureClass.STARTUP and not last_attempt.progressed
    if not sound_attempt.grows_to or not never_started or last_attempt.nodes == sound_attempt.nodes:
        return 0
    return sound_attempt.nodes if sum(node.fit for node in view.nodes) >= sound_attempt.nodes else 0


def room(view: Observation, policy: Policy) -> int:
    """Return the larger number of nodes with which the gang in flight could train; 0 for none. A node that is foretold
    to go does not count."""
    if not view.in_flight or not view.gang_nodes:
        return 0
    leaving = leaving_nodes(view)
    fit_count = sum(node.fit and node not in leaving for node in view.nodes)
    size = view.nodes_wanted if fit_count >= view.nodes_wanted else _largest(policy, fit_count)
    return size if size > view.gang_nodes else 0


def growth(view: Observation, policy: Policy, history: History) -> tuple[int, str]:
    """Return the number of nodes for which the gang in flight is ended now, 0 for none, and why."""
    size = room(view, policy)
    if not size or view.room_step is None:
        return 0, "training" if not view.gang_nodes else f"training with {view.gang_nodes} of {view.nodes_wanted} nodes"
    words = f"{size} nodes are fit, and the gang has {view.gang_nodes}"
    if any(pod.phase == "Succeeded" or pod.trainer_phase in _ENDING for pod in view.pods):
        return 0, f"training; {words}: it does not grow at its end, nor in an evaluation"
    if view.deadline - view.now < policy.startup_timeout + 2 * policy.interval_and_archive:
        return 0, f"training; {words}: the deadline is too near for a restart to pay"
    window_start = view.now - LIMITS_WINDOW
    growths = [attempt.ended_at for attempt in history.attempts if attempt.grows_to and attempt.ended_at > window_start]
    if growths and view.now < (next_at := growths[-1] + FIRST_PAUSE * 2 ** (len(growths) - 1)):
        return 0, f"training; {words}: it grows from {next_at:%H:%M} UTC on, later after each growth"
    if growths and history.count(window_start, FailureClass.NODE) >= policy.node_replacements:
        return 0, f"training; {words}: it has grown before, and one more node loss would end the campaign"
    if view.committed_step <= view.room_step:
        return 0, f"training; {words}: it grows after its next commit"
    return size, f"{words}; step {view.committed_step} is committed since"


def _largest(policy: Policy, fit_count: int) -> int:
    return max((size for size in policy.gang_sizes if size <= fit_count), default=0)


class Room:
    """Keeps since which commit there is room for a larger gang. A steward that starts waits for one more."""

    def __init__(self) -> None:
        self._step: int | None = None

    def note(self, view: Observation, policy: Policy) -> Observation:
        """Return a view with the commit since which there is room; a look without room begins anew."""
        if not room(view, policy):
            self._step = None
        elif self._step is None:
            self._step = view.committed_step
        return view.model_copy(update={"room_step": self._step})
