"""The steward's decisions, as pure functions: no Kubernetes, no AWS, no clock. `steward.py` observes and acts.

Rules apply in order: requests to stop, money and time, progress, the class of the failure. An attempt in flight is
only ended; the next turn decides, between attempts, what follows from its end. Unknown is not dead: the steward waits
until a second witness agrees or the class's timeout is over. It touches nothing while the record cannot be written or
the cluster cannot be reached, until `Policy.blind_timeout` is over.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator

from infra.steward import blame
from infra.steward.foresight import leaving
from infra.steward.rules import gang_size
from infra.steward.rules.limits import class_exhausted, counts, not_replaced, repairs_left
from infra.steward.rules.means import archive_uncovered, hold_until, out_of_means
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
    "Hold", "Launch", "NodeView", "Observation", "PodView", "Policy", "Reboot", "Replace", "Wait", "counts", "decide",
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
    nodes: int = 0
    """Of its gang; 0: all of the spec's."""
    why: Why


class EndAttempt(Frozen):
    """The attempt has failed: record it, remove its job."""

    kind: Literal["end-attempt"] = "end-attempt"
    failure: FailureClass
    why: Why
    dead_nodes: tuple[str, ...] = ()
    sick_nodes: tuple[str, ...] = ()
    """Those of them that answer, and compute wrongly."""
    first_failed: str | None = None
    """Node of the pod that failed first by its own fault; None if several did."""
    culprit: Culprit | None = None
    """The rank that the others waited for; None where nothing tells."""
    grows_to: int = 0
    """The attempt is sound, and so many nodes are there for the next one; 0: it is not ended for that."""


class Replace(Frozen):
    """Quarantine these nodes and have their instances replaced."""

    kind: Literal["replace"] = "replace"
    nodes: tuple[str, ...]
    reasons: tuple[str, ...]
    """One for each node."""
    why: Why


class Reboot(Frozen):
    """Have these nodes' instances rebooted, once, instead of replaced."""

    kind: Literal["reboot"] = "reboot"
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


Action = Wait | Launch | EndAttempt | Replace | Reboot | Hold | Finish | GiveBack


def decide(view: Observation, policy: Policy, history: History) -> Action:
    """Return the next action, from the observation, the limits and the attempts so far."""
    if view.in_flight:
        repair_count = repairs_left(view, policy, history)
        action = _decide_running(view, policy, repair_count) or _decide_growth(view, policy, history)
    else:
        action = _decide_between(view, policy, history)
    cut_off = [outage for outage in view.unseen if outage.source in ("record", "cluster")]
    if not cut_off:
        return action
    outage_text = "; ".join(map(str, cut_off))
    if view.given_back:
        return Wait(why=f"the GPU nodes are given back ({view.given_back}); {outage_text}")
    due = "" if isinstance(action, Wait) else f"{action.kind} is due: {action.why}; "
    if reason := _why_give_back(view, policy, bool(due)):
        return GiveBack(why=f"{reason}; {due}{outage_text}")
    return Wait(why=f"nothing is touched: {outage_text}; {due or action.why}")


def _why_give_back(view: Observation, policy: Policy, due: bool) -> str | None:
    """Return why to give back the GPU nodes without record or cluster, or None. A gang may train on while only the
    cluster's API is silent: that alone is no reason."""
    record, cluster = view.lasts("record"), view.lasts("cluster") or timedelta()
    longest = max(record or timedelta(), cluster)
    if longest > policy.means_patience and (stop := out_of_means(view, policy)):
        return stop
    if record is not None and record > policy.blind_timeout:
        return f"no record for longer than {policy.blind_timeout}"
    if due and cluster > policy.blind_timeout:
        return f"no answer from the cluster for longer than {policy.blind_timeout}"
    return None


def _decide_growth(view: Observation, policy: Policy, history: History) -> Action:
    """End a gang that trains on fewer nodes than are there by now, else let it train on. A node beside it that is sick
    would never become fit by itself: it is replaced meanwhile."""
    if view.gang_nodes:
        action = _to_replace(view, policy, history, None, {str(pod.node) for pod in view.pods})
        if isinstance(action, Replace | Reboot):
            return action
    size, reason = gang_size.growth(view, policy, history)
    return EndAttempt(failure=FailureClass.INTERRUPTED, why=reason, grows_to=size) if size else Wait(why=reason)


def _decide_running(view: Observation, policy: Policy, repair_count: int) -> Action | None:
    """Return what a running gang needs; None while all of its pods train. `repair_count`: repairs that are left."""
    if view.given_back:
        return EndAttempt(failure=FailureClass.INTERRUPTED, why=view.given_back)
    is_complete = len(view.pods) >= view.pods_wanted
    if view.pods and is_complete and all(pod.phase == "Succeeded" for pod in view.pods):
        words = blame.closing_words(view.pods)
        return Finish(outcome="done", why="every pod of the gang succeeded" + (f"; {words}" if words else ""))
    if view.stop_requested:
        return EndAttempt(failure=FailureClass.INTERRUPTED, why="a stop was requested")
    if stop := out_of_means(view, policy):
        return EndAttempt(failure=FailureClass.INTERRUPTED, why=stop)
    if view.vanished:  # a missing pod is no failure of the job then, and no end
        return EndAttempt(failure=FailureClass.INTERRUPTED, why=view.vanished)
    if view.stopped_for is not None and view.stopped_for > policy.heartbeat_timeout:  # nobody was quick to undo it
        return EndAttempt(failure=FailureClass.QUEUE, why=view.queued)
    if view.queued:  # the queue starts the pods, and has ended those that are missing
        return Wait(why=view.queued)
    dead = blame.dead_nodes(view, policy.heartbeat_timeout)
    failed_pods = [pod for pod in view.pods if pod.phase in ("Failed", "Missing")]
    if dead:
        if (next_pod := blame.next_silent(view, dead, policy.heartbeat_timeout)) is not None:
            return Wait(why=f"{next_pod.name} is silent too: {policy.heartbeat_timeout} tell whether its node is dead")
        reason = f"node {', '.join(dead)} is dead: silent, and a second witness agrees"
        return EndAttempt(failure=FailureClass.NODE, why=reason, dead_nodes=dead)
    if failed_pods:
        return _decide_failed(view, policy, failed_pods)
    starting = view.step == 0 and all(pod.step == 0 for pod in view.pods)
    if starting and view.since_launch > policy.startup_timeout:
        reason = "; ".join(filter(None, [f"no first step within {policy.startup_timeout}", blame.unstarted_text(view)]))
        return _end_stranded(view, reason) or EndAttempt(failure=FailureClass.STARTUP, why=reason)
    saving = any(pod.trainer_phase in (Phase.SAVING, Phase.EVALUATING, Phase.FINISHING) for pod in view.pods)
    patience = (policy.save_timeout or 2 * policy.hang_timeout) if saving else policy.hang_timeout
    if not starting and view.since_step > patience:
        suspect = blame.culprit(view)
        prefix = f"{suspect}; " if suspect else ""
        reason = f"{prefix}no finished step for {view.since_step}"
        fault = suspect.node if suspect else None
        return EndAttempt(failure=FailureClass.HANG, why=reason, culprit=suspect, first_failed=fault)
    interval = policy.interval_and_archive - policy.archive
    if drain := leaving.why_drain(view, interval, repair_count, policy.repairs_per_hour):
        return EndAttempt(failure=FailureClass.INTERRUPTED, why=drain)
    start_text = blame.unstarted_text(view)
    return Wait(why=start_text) if start_text else None


def _decide_failed(view: Observation, policy: Policy, failed_pods: list[PodView]) -> Action:
    """Decide on a failed pod. A silent peer may be the cause, which shows within the heartbeat timeout."""
    classes = {blame.failure_of(pod) for pod in failed_pods}
    failure = next(kind for kind in WORST_FIRST if kind in classes)
    silent = [
        pod for pod in view.pods if pod.phase == "Running" and (pod.silent_for or timedelta()) > timedelta(seconds=2)
    ]
    if failure in (FailureClass.PROCESS, FailureClass.INTERRUPTED) and silent:
        return Wait(why=f"{silent[0].name} is silent: {policy.heartbeat_timeout} tell whether its node is dead")
    if failure is FailureClass.PROCESS and blame.may_tell_more(view, failed_pods, policy.heartbeat_timeout):
        return Wait(why=f"{failed_pods[0].name} failed: the other pods' ends may name the rank")
    first_pod = blame.causes_first(failed_pods)[0]
    suspect = blame.culprit(view) if failure is FailureClass.PROCESS else None
    prefix = f"{suspect}; " if suspect else ""
    reason = f"{prefix}{blame.name_of(first_pod)} ended with exit code {first_pod.exit_code}: {first_pod.detail}"
    if CONSEQUENCE[failure] is Consequence.RESTART and (end := _end_stranded(view, reason)):
        return end
    sick = blame.sick(failed_pods)
    fault = blame.first_failed(failed_pods) or (suspect.node if suspect else None)
    return EndAttempt(
        failure=failure, why=reason, dead_nodes=sick, sick_nodes=sick, first_failed=fault, culprit=suspect
    )


def _end_stranded(view: Observation, reason: str) -> EndAttempt | None:
    """Return the end of an attempt that failed because a pod never started on a node that is not Ready."""
    if not (dead := blame.stranded_nodes(view)):
        return None
    reason = f"a pod was never started on {', '.join(dead)}, not Ready; {reason}"
    return EndAttempt(failure=FailureClass.NODE, why=reason, dead_nodes=dead)


def _decide_between(view: Observation, policy: Policy, history: History) -> Action:
    last_attempt = history.attempts[-1] if history.attempts else None
    if view.stop_requested:
        return Finish(outcome="stopped", why="a stop was requested")
    if view.given_back:
        return Finish(outcome="stopped", why=view.given_back)
    if (undone := view.lasts("acts")) is not None and undone > policy.undone_timeout:
        return Finish(outcome="stopped", why="; ".join(map(str, view.unseen)))
    holding = last_attempt is not None and CONSEQUENCE[last_attempt.failure] is Consequence.HOLD
    if not holding and (stop := out_of_means(view, policy)):
        return Finish(outcome="stopped", why=stop)
    if history.without_progress() >= policy.attempts_without_progress:
        reason = f"{history.without_progress()} attempts in a row committed no newer checkpoint"
        return Finish(outcome="stopped", why=reason)
    if last_attempt is not None and holding:
        return _hold(view, policy, last_attempt)
    if last_attempt is not None and (stop := class_exhausted(view, last_attempt, policy, history)):
        return Finish(outcome="stopped", why=stop)
    if action := _to_replace(view, policy, history, last_attempt):
        return action
    if size := gang_size.before_growth(view, history):
        reason = f"the gang of attempt {view.attempt} never started"
        return Launch(attempt=view.attempt + 1, nodes=size, why=f"{reason}: it goes on with {size} nodes, as before")
    if view.since_short is not None:
        left_alone = not_replaced(view, policy, history)
        short = "; ".join([blame.short_of(view), *left_alone])
        if left_alone and sum(node.fit or node.suspected for node in view.nodes) >= view.nodes_wanted:
            if size := gang_size.without_sick(view, policy):
                return Launch(attempt=view.attempt + 1, nodes=size, why=f"{short}; the gang goes on with {size}")
            return Launch(attempt=view.attempt + 1, why=f"{short}; pods run there all the same")
        short_for = gang_size.short_for(view, history)
        if size := gang_size.smaller(view, policy, history):
            return Launch(attempt=view.attempt + 1, nodes=size, why=f"{short}; the gang goes on with {size}")
        if short_for > policy.capacity_timeout:
            reason = "; ".join([f"no capacity for {short_for}", short, *view.troubles])
            return Finish(outcome="stopped", why=reason)
        return Wait(why=short)
    return Launch(attempt=view.attempt + 1, why="enough fit nodes")


def _hold(view: Observation, policy: Policy, last_attempt: Attempt) -> Action:
    """Hold until `hold_for` is over or the money or time left covers only the archive."""
    reason = f"attempt {last_attempt.number} ended with a {last_attempt.failure} error: a retry would repeat it"
    if policy.on_stop == "teardown":
        return Finish(outcome="held", why=reason)
    if stop := archive_uncovered(view, policy):
        return Finish(outcome="held", why=f"{reason}; no longer held: {stop}")
    if view.held_since is None:
        return Hold(attempt=last_attempt.number, until=hold_until(view, policy, view.now), why=reason)
    if view.now >= view.held_since + policy.hold_for:
        return Finish(outcome="held", why=f"{reason}; not relaunched within {policy.hold_for}")
    hold_end = hold_until(view, policy, view.held_since)
    return Wait(why=f"held until {hold_end.isoformat(timespec='seconds')}: {reason}")


def _to_replace(
    view: Observation,
    policy: Policy,
    history: History,
    last_attempt: Attempt | None,
    in_use: Container[str] = frozenset(),
) -> Action | None:
    """Replace lost nodes, or finish when too few repairs are left. Replace sick nodes only while repairs are left: many
    sick nodes at once share a cause, and their replacements would have it too. `in_use`: nodes that are left alone."""
    if not policy.replaces:
        return None
    settled_nodes = [node for node in history.settled_nodes(view) if node.name not in in_use]
    left = repairs_left(view, policy, history)
    lost_nodes = blame.lost_nodes(settled_nodes, last_attempt)
    if len(lost_nodes) > left:
        recent = counts(view.now, history)["repairs_per_hour"]
        return Finish(outcome="stopped", why=f"{recent} repairs within the hour: our own repairs may be the cause")
    foretold = leaving.to_replace(view, left - len(lost_nodes), policy.repairs_per_hour)
    certain = {**{name: reason for name, reason in foretold.items() if name not in in_use}, **lost_nodes}
    ailing = {name: reason for name, reason in blame.ailing(settled_nodes, history).items() if name not in certain}
    sick = {**ailing, **certain}
    replacements = certain if blame.shared(view, sick, left) else sick
    reboots = blame.rebootable(view, history, ailing) if policy.reboots and replacements is sick else {}
    if 2 * len(reboots) > left:  # each may have to be replaced all the same
        reboots = {}
    nodes = reboots or replacements
    if not nodes:
        return None
    node_text = "; ".join(f"{name}: {reason}" for name, reason in nodes.items())
    if reboots:
        return Reboot(nodes=tuple(nodes), reasons=tuple(nodes.values()), why=f"a reboot may cure it: {node_text}")
    prefix = f"after attempt {last_attempt.number}: " if last_attempt else ""
    return Replace(nodes=tuple(nodes), reasons=tuple(nodes.values()), why=f"{prefix}{node_text}")
