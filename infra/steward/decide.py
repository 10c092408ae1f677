"""The steward's decisions, as pure functions: no Kubernetes, no AWS, no clock. `steward.py` observes and acts.

Rules apply in order: requests to stop, money and time, progress, the class of the failure. An attempt in flight is
only ended; the next turn decides, between attempts, what follows from its end. Unknown is not dead: the steward waits
until a second witness agrees or the class's timeout is over. It touches nothing while the record cannot be written or
the cluster cannot be reached, until `Policy.blind_timeout` is over.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator

from infra.spec.sections import LIMITS_WINDOW
from infra.steward import blame
from infra.steward.seeing.views import (
    CONSEQUENCE,
    WORST_FIRST,
    Attempt,
    Consequence,
    FailureClass,
    Frozen,
    History,
    NodeView,
    Observation,
    PodView,
    Policy,
)
from trainer.contract import Phase
from trainer.contract.culprit import Culprit

__all__ = [
    "CONSEQUENCE", "Action", "Attempt", "Consequence", "EndAttempt", "FailureClass", "Finish", "GiveBack", "History",
    "Hold", "Launch", "NodeView", "Observation", "PodView", "Policy", "Replace", "Wait", "decide",
]  # fmt: skip


_LONGEST = 500
Why = Annotated[str, AfterValidator(lambda words: words[:_LONGEST])]
"""A reason for people. It quotes others and goes into the record, so it is cut."""


class Wait(Frozen):
    kind: Literal["wait"] = "wait"
    why: Why


class Launch(Frozen):
    kind: Literal["launch"] = "launch"
    attempt: int
    why: Why


class EndAttempt(Frozen):
    """The attempt has failed: record it, remove its job."""

    kind: Literal["end-attempt"] = "end-attempt"
    failure: FailureClass
    why: Why
    dead_nodes: tuple[str, ...] = ()
    first_failed: str | None = None
    """Node of the pod that failed first by its own fault; None if several did."""
    culprit: Culprit | None = None
    """The rank that the others waited for; None where nothing tells."""


class Replace(Frozen):
    """Quarantine these nodes and have their instances replaced."""

    kind: Literal["replace"] = "replace"
    nodes: tuple[str, ...]
    reasons: tuple[str, ...]
    """One for each node."""
    why: Why


class Hold(Frozen):
    """Keep the warm cluster for a person to judge, at most until `hold_for`, deadline or budget."""

    kind: Literal["hold"] = "hold"
    attempt: int
    until: datetime
    why: Why


class Finish(Frozen):
    """End of training; the newest sound checkpoint is archived. `held`: an error that a retry would repeat ended it, at
    once or after its hold."""

    kind: Literal["finish"] = "finish"
    outcome: Literal["done", "stopped", "held"]
    why: Why


class GiveBack(Frozen):
    """Ask the gang to commit and give the GPU nodes back, although the record or the cluster does not answer."""

    kind: Literal["give-back"] = "give-back"
    why: Why


Action = Wait | Launch | EndAttempt | Replace | Hold | Finish | GiveBack


def decide(seen: Observation, policy: Policy, history: History) -> Action:
    """Return the next action, from the observation, the limits and the attempts so far."""
    action = _running(seen, policy) if seen.in_flight else _between(seen, policy, history)
    cut_off = [outage for outage in seen.unseen if outage.source in ("record", "cluster")]
    if not cut_off:
        return action
    told = "; ".join(map(str, cut_off))
    if seen.given_back:
        return Wait(why=f"the GPU nodes are given back ({seen.given_back}); {told}")
    due = "" if isinstance(action, Wait) else f"{action.kind} is due: {action.why}; "
    if why := _why_give_back(seen, policy, bool(due)):
        return GiveBack(why=f"{why}; {due}{told}")
    return Wait(why=f"nothing is touched: {told}; {due or action.why}")


def _why_give_back(seen: Observation, policy: Policy, due: bool) -> str | None:
    """Return why to give back the GPU nodes without record or cluster, or None. A gang may train on while only the
    cluster's API is silent: that alone is no reason."""
    record, cluster = seen.lasts("record"), seen.lasts("cluster") or timedelta()
    longest = max(record or timedelta(), cluster)
    if longest > policy.means_patience and (stop := _out_of_means(seen, policy)):
        return stop
    if record is not None and record > policy.blind_timeout:
        return f"no record for longer than {policy.blind_timeout}"
    if due and cluster > policy.blind_timeout:
        return f"no answer from the cluster for longer than {policy.blind_timeout}"
    return None


def _running(seen: Observation, policy: Policy) -> Action:
    if seen.given_back:
        return EndAttempt(failure=FailureClass.INTERRUPTED, why=seen.given_back)
    whole = len(seen.pods) >= seen.nodes_wanted
    if seen.pods and whole and all(pod.phase == "Succeeded" for pod in seen.pods):
        words = blame.closing_words(seen.pods)
        return Finish(outcome="done", why="every pod of the gang succeeded" + (f"; {words}" if words else ""))
    if seen.stop_requested:
        return EndAttempt(failure=FailureClass.INTERRUPTED, why="a stop was requested")
    if stop := _out_of_means(seen, policy):
        return EndAttempt(failure=FailureClass.INTERRUPTED, why=stop)
    dead = blame.dead_nodes(seen, policy.heartbeat_timeout)
    failed = [pod for pod in seen.pods if pod.phase in ("Failed", "Missing")]
    if dead:
        why = f"node {', '.join(dead)} is dead: silent, and a second witness agrees"
        return EndAttempt(failure=FailureClass.NODE, why=why, dead_nodes=dead)
    if failed:
        return _failed(seen, policy, failed)
    starting = seen.step == 0 and all(pod.step == 0 for pod in seen.pods)
    if starting and seen.since_launch > policy.startup_timeout:
        why = "; ".join(filter(None, [f"no first step within {policy.startup_timeout}", blame.unstarted(seen)]))
        return _stranded(seen, why) or EndAttempt(failure=FailureClass.STARTUP, why=why)
    saving = any(pod.trainer_phase in (Phase.SAVING, Phase.EVALUATING, Phase.FINISHING) for pod in seen.pods)
    patience = (policy.save_timeout or 2 * policy.hang_timeout) if saving else policy.hang_timeout
    if not starting and seen.since_step > patience:
        found = blame.culprit(seen)
        told = f"{found}; " if found else ""
        why = f"{told}no finished step for {seen.since_step}"
        return EndAttempt(failure=FailureClass.HANG, why=why, culprit=found, first_failed=found.node if found else None)
    return Wait(why=blame.unstarted(seen) or "training")


def _failed(seen: Observation, policy: Policy, failed: list[PodView]) -> Action:
    """Decide on a failed pod. A silent peer may be the cause, which shows within the heartbeat timeout."""
    classes = {blame.failure_of(pod) for pod in failed}
    failure = next(kind for kind in WORST_FIRST if kind in classes)
    silent = [
        pod for pod in seen.pods if pod.phase == "Running" and (pod.silent_for or timedelta()) > timedelta(seconds=2)
    ]
    if failure in (FailureClass.PROCESS, FailureClass.INTERRUPTED) and silent:
        return Wait(why=f"{silent[0].name} is silent: {policy.heartbeat_timeout} tell whether its node is dead")
    if failure is FailureClass.PROCESS and blame.may_tell_more(seen, failed, policy.heartbeat_timeout):
        return Wait(why=f"{failed[0].name} failed: the other pods' ends may name the rank")
    first = blame.causes_first(failed)[0]
    found = blame.culprit(seen) if failure is FailureClass.PROCESS else None
    told = f"{found}; " if found else ""
    why = f"{told}{blame.name_of(first)} ended with exit code {first.exit_code}: {first.detail}"
    if CONSEQUENCE[failure] is Consequence.RESTART and (end := _stranded(seen, why)):
        return end
    sick = blame.sick(failed)
    fault = blame.first_failed(failed) or (found.node if found else None)
    return EndAttempt(failure=failure, why=why, dead_nodes=sick, first_failed=fault, culprit=found)


def _stranded(seen: Observation, why: str) -> EndAttempt | None:
    """Return the end of an attempt that failed because a pod never started on a node that is not Ready."""
    if not (dead := blame.stranded(seen)):
        return None
    why = f"a pod was never started on {', '.join(dead)}, not Ready; {why}"
    return EndAttempt(failure=FailureClass.NODE, why=why, dead_nodes=dead)


def _between(seen: Observation, policy: Policy, history: History) -> Action:
    last = history.attempts[-1] if history.attempts else None
    if seen.stop_requested:
        return Finish(outcome="stopped", why="a stop was requested")
    if seen.given_back:
        return Finish(outcome="stopped", why=seen.given_back)
    if (undone := seen.lasts("acts")) is not None and undone > policy.undone_timeout:
        return Finish(outcome="stopped", why="; ".join(map(str, seen.unseen)))
    holding = last is not None and CONSEQUENCE[last.failure] is Consequence.HOLD
    if not holding and (stop := _out_of_means(seen, policy)):
        return Finish(outcome="stopped", why=stop)
    if history.without_progress() >= policy.attempts_without_progress:
        why = f"{history.without_progress()} attempts in a row committed no newer checkpoint"
        return Finish(outcome="stopped", why=why)
    if last is not None and holding:
        return _hold(seen, policy, last)
    if last is not None and (stop := _class_exhausted(seen, last, policy, history)):
        return Finish(outcome="stopped", why=stop)
    if action := _to_replace(seen, policy, history, last):
        return action
    if seen.since_short is not None:
        not_replaced = _not_replaced(seen, policy, history)
        short = "; ".join([blame.short_of(seen), *not_replaced])
        if not_replaced and sum(node.fit or node.suspected for node in seen.nodes) >= seen.nodes_wanted:
            return Launch(attempt=seen.attempt + 1, why=f"{short}; pods run there all the same")
        if seen.since_short > policy.capacity_timeout:
            why = "; ".join([f"no capacity for {seen.since_short}", short, *seen.troubles])
            return Finish(outcome="stopped", why=why)
        return Wait(why=short)
    return Launch(attempt=seen.attempt + 1, why="enough fit nodes")


def _hold(seen: Observation, policy: Policy, last: Attempt) -> Action:
    """Hold until `hold_for` is over or the money or time left covers only the archive."""
    why = f"attempt {last.number} ended with a {last.failure} error: a retry would repeat it"
    if policy.on_stop == "teardown":
        return Finish(outcome="held", why=why)
    if stop := _archive_uncovered(seen, policy):
        return Finish(outcome="held", why=f"{why}; no longer held: {stop}")
    if seen.held_since is None:
        return Hold(attempt=last.number, until=hold_until(seen, policy, seen.now), why=why)
    if seen.now >= seen.held_since + policy.hold_for:
        return Finish(outcome="held", why=f"{why}; not relaunched within {policy.hold_for}")
    until = hold_until(seen, policy, seen.held_since)
    return Wait(why=f"held until {until.isoformat(timespec='seconds')}: {why}")


def hold_until(seen: Observation, policy: Policy, since: datetime) -> datetime:
    """Return the earliest of the hold's end, the deadline less the archive, and the budget less the archive."""
    ends = [since + policy.hold_for, seen.deadline - policy.archive]
    if seen.usd_per_hour > 0:
        hours = float((policy.budget_usd - seen.spent_usd) / seen.usd_per_hour)
        if hours < 24 * 365:
            ends.append(seen.now + timedelta(hours=hours) - policy.archive)
    return min(ends)


def _archive_uncovered(seen: Observation, policy: Policy) -> str | None:
    if seen.now + policy.archive >= seen.deadline:
        return f"the deadline {seen.deadline.isoformat()} leaves time for the archive only"
    needed = seen.usd_per_hour * Decimal(policy.archive.total_seconds()) / 3600
    if seen.spent_usd + needed >= policy.budget_usd:
        return f"{seen.spent_usd:.2f} of {policy.budget_usd} USD are spent: the rest is for the archive"
    return None


def _to_replace(seen: Observation, policy: Policy, history: History, last: Attempt | None) -> Action | None:
    """Replace lost nodes, or finish when too few repairs are left. Replace sick nodes only while repairs are left: many
    sick nodes at once share a cause, and their replacements would have it too."""
    lost, left = blame.lost(seen.nodes, last), _repairs_left(seen, policy, history)
    if len(lost) > left:
        recent = _recent(seen, history)
        return Finish(outcome="stopped", why=f"{recent} repairs within the hour: our own repairs may be the cause")
    sick = {**blame.ailing(seen.nodes, history), **lost}
    chosen = lost if blame.shared(seen, sick, left) else sick
    if not chosen:
        return None
    told = "; ".join(f"{name}: {why}" for name, why in chosen.items())
    after = f"after attempt {last.number}: " if last else ""
    return Replace(nodes=tuple(chosen), reasons=tuple(chosen.values()), why=f"{after}{told}")


def _recent(seen: Observation, history: History) -> int:
    hour_ago = seen.now - timedelta(hours=1)
    return sum(at > hour_ago for at in history.repairs)


def _repairs_left(seen: Observation, policy: Policy, history: History) -> int:
    return max(0, policy.repairs_per_hour - _recent(seen, history))


def _not_replaced(seen: Observation, policy: Policy, history: History) -> list[str]:
    sick = blame.ailing(seen.nodes, history)
    why = blame.shared(seen, sick, _repairs_left(seen, policy, history))
    return [f"{len(sick)} not replaced: {why}"] if sick and why else []


def _class_exhausted(seen: Observation, last: Attempt, policy: Policy, history: History) -> str | None:
    since = seen.now - LIMITS_WINDOW
    within = f"within {LIMITS_WINDOW / timedelta(hours=1):g} hours"
    losses = history.count(since, FailureClass.NODE)
    if last.failure is FailureClass.NODE and losses > policy.node_replacements:
        return f"{losses} node losses {within}, {policy.node_replacements} allowed"
    restarts = history.count(since, *(kind for kind, what in CONSEQUENCE.items() if what is Consequence.RESTART))
    if CONSEQUENCE[last.failure] is Consequence.RESTART and restarts > policy.process_restarts:
        return f"{restarts} restarts {within}, {policy.process_restarts} allowed"
    return None


def _out_of_means(seen: Observation, policy: Policy) -> str | None:
    """Return why the money or time left does not cover one more interval and the archive; None when it does."""
    if seen.now + policy.interval_and_archive > seen.deadline:
        return f"the deadline {seen.deadline.isoformat()} leaves no time for another interval and the archive"
    needed = seen.usd_per_hour * Decimal(policy.interval_and_archive.total_seconds()) / 3600
    if seen.spent_usd + needed > policy.budget_usd:
        return f"{seen.spent_usd:.2f} of {policy.budget_usd} USD are spent: the rest is for the archive"
    return None
