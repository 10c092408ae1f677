"""The search for the node at fault, after a failed attempt and at any time. Pure; `decide` acts on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from datetime import UTC, datetime, timedelta

from infra.cluster.fitness import Sickness, overdue, shared_cause
from infra.steward.seeing.views import (
    BY_EXIT,
    CONSEQUENCE,
    WORST_FIRST,
    Attempt,
    Consequence,
    FailureClass,
    History,
    NodeView,
    Observation,
    PodView,
)
from trainer.contract import ExitCode
from trainer.contract.culprit import Culprit, Located, find_culprit
from trainer.contract.exits import OF_OTHERS

_SIGTERM = 128 + 15
_APART = timedelta(seconds=2)
"""Kubernetes dates ends to the second, each node by its own clock."""
_TOGETHER = timedelta(seconds=5)
"""Within this time of the first end the rank that caused it has ended too, if it has failed by itself."""
_NEVER = datetime.max.replace(tzinfo=UTC)
_TWICE = 2


def failure_of(pod: PodView) -> FailureClass:
    return BY_EXIT.get(pod.exit_code or ExitCode.INTERNAL, FailureClass.PROCESS)


def causes_first(failed_pods: Sequence[PodView]) -> list[PodView]:
    """Sort failed pods: own failures before consequences of others', then the worst class, then the earliest."""
    return sorted(
        failed_pods,
        key=lambda pod: (not _is_own(pod), WORST_FIRST.index(failure_of(pod)), pod.ended_at or _NEVER, pod.index),
    )


def first_failed(failed_pods: Sequence[PodView]) -> str | None:
    """Return the node of the one failure that no other failure explains; None when there is no such one.

    Pods that fail of their own at the same time share a cause: data, code, file system, or a lost collective.
    """
    own_failures = [pod for pod in failed_pods if _is_own(pod)]
    if len(own_failures) > 1:
        ends = sorted(pod.ended_at or _NEVER for pod in own_failures)
        if _NEVER in ends or ends[1] - ends[0] < _APART:
            return None
        own_failures = [pod for pod in own_failures if pod.ended_at == ends[0]]
    return own_failures[0].node if own_failures else None


def _is_own(pod: PodView) -> bool:
    is_gone = pod.exit_code is None
    return not is_gone and pod.exit_code != _SIGTERM and pod.reason not in OF_OTHERS


def culprit(view: Observation) -> Culprit | None:
    """Return the rank at fault and its node, by what the nodes of all pods know of their ranks."""
    return find_culprit([Located(pod.node or pod.name, rank) for pod in view.pods for rank in pod.ranks])


def name_of(pod: PodView) -> str:
    """Return a failed pod's name, with the rank that failed first and its node."""
    return pod.name if pod.failed_rank is None else f"{pod.name}, rank {pod.failed_rank} on {pod.node},"


def closing_words(pods: Iterable[PodView]) -> str:
    """Return what a pod that succeeded says of its end all the same; empty where none does."""
    return next((pod.words for pod in pods if pod.words), "")


def may_tell_more(view: Observation, failed_pods: Sequence[PodView], patience: timedelta) -> bool:
    """Return whether to wait for other pods' ends: so far all have only lost a peer, and no rank is proven at fault. A
    job of anybody does not always tell its own errors from a lost peer's: there any end is followed by a short wait."""
    own_failure, numbers = any(map(_is_own, failed_pods)), any(pod.ranks for pod in failed_pods)
    longest = min(patience, _TOGETHER) if own_failure else patience
    if (own_failure and numbers) or view.since_failed is None or view.since_failed > longest:
        return False
    proven = numbers and (suspect := culprit(view)) is not None and suspect.proven
    return not proven and any(pod.phase == "Running" for pod in view.pods)


def dead_nodes(view: Observation, heartbeat_timeout: timedelta) -> tuple[str, ...]:
    """Return nodes whose pod is silent and that a second witness calls dead: EC2, the Node object, or a failed peer. A
    pod that its kubelet has not started cannot answer: there the Node must have been not Ready for as long."""
    views = {node.name: node for node in view.nodes}
    peer_failed = any(pod.phase == "Failed" for pod in view.pods)
    dead = []
    for pod in view.pods:
        if pod.node is None or pod.phase in ("Succeeded", "Failed"):
            continue
        node = views.get(pod.node)
        ec2_says = node is not None and node.instance_state in ("impaired", "gone")
        kubernetes_says = node is None or node.ready is not True
        quiet = pod.silent_for if pod.silent_for is not None else pod.running_for
        silent = quiet is not None and quiet > heartbeat_timeout
        if silent and (ec2_says or kubernetes_says or peer_failed):
            dead.append(pod.node)
        elif pod.phase == "Pending" and node is not None and node.ready is not True:
            not_ready_for = min(node.sick_for.get(Sickness.LATE, timedelta()), view.since_launch)
            if not_ready_for > heartbeat_timeout:
                dead.append(pod.node)
    return tuple(dict.fromkeys(dead))


def next_silent(view: Observation, dead_nodes: tuple[str, ...], heartbeat_timeout: timedelta) -> PodView | None:
    """Return a pod on another node that is silent for less than the timeout: its node may have died with the others,
    and is then part of the same end. None once the dead are silent for twice the timeout, or their pods gone: of many
    pods, one is always late."""
    dead_pods = [pod for pod in view.pods if pod.node in dead_nodes and pod.phase == "Running"]
    silences = [pod.silent_for or pod.running_for or timedelta.max for pod in dead_pods]
    if max(silences, default=timedelta.max) > 2 * heartbeat_timeout:
        return None
    for pod in view.pods:
        silent_for = pod.silent_for or timedelta()
        if pod.phase == "Running" and pod.node not in dead_nodes and _APART < silent_for <= heartbeat_timeout:
            return pod
    return None


def sick(failed_pods: Iterable[PodView]) -> tuple[str, ...]:
    """Return the nodes that the watch has named: by a replay they compute wrongly, or they are slow for long."""
    return tuple(pod.node for pod in failed_pods if pod.exit_code == ExitCode.SICK and pod.node is not None)


def stranded_nodes(view: Observation) -> tuple[str, ...]:
    """Return nodes that are not Ready and hold a Pending pod: its peers gave up waiting for it."""
    not_ready = {node.name for node in view.nodes if node.ready is not True}
    return tuple(dict.fromkeys(pod.node for pod in view.pods if pod.phase == "Pending" and pod.node in not_ready))


def unstarted_text(view: Observation) -> str:
    """Describe how many pods of the gang have not started, with the first one's reason; empty when all have."""
    waiting = [pod for pod in view.pods if pod.waits]
    missing = max(0, view.pods_wanted - len(view.pods))
    if not waiting:
        return f"{missing} of {view.pods_wanted} pods have not been made" if missing else ""
    pod, count = waiting[0], len(waiting) + missing
    return f"{count} of {view.pods_wanted} pods wait; {pod.node or pod.name}: {pod.waits}"


def lost_nodes(nodes: Iterable[NodeView], last_attempt: Attempt | None) -> dict[str, str]:
    """Return node -> why, for nodes that are impaired or died in the last attempt and are not replaced yet."""
    reasons = {}
    for node in nodes:
        if node.quarantined:
            continue
        if node.instance_state == "impaired":
            reasons[node.name] = "EC2 calls its instance impaired"
        elif last_attempt and last_attempt.buries(node) and node.instance_state in ("running", "unknown"):
            reasons[node.name] = f"dead in attempt {last_attempt.number}"
    return reasons


def ailing(nodes: Iterable[NodeView], history: History) -> dict[str, str]:
    """Return node -> why, for nodes sick for too long, or first to fail twice in a row without a new checkpoint."""
    reasons = {}
    for node in nodes:
        if node.quarantined or node.instance_state == "gone":
            continue
        if overdue(node.sick_for):
            reasons[node.name] = node.unfit
        elif _again_and_again(node, history):
            numbers = " and ".join(str(attempt.number) for attempt in history.attempts[-_TWICE:])
            reasons[node.name] = f"attempts {numbers} failed first on it, without a newer checkpoint"
    return reasons


def _again_and_again(node: NodeView, history: History) -> bool:
    pair = history.attempts[-_TWICE:]
    restarts = all(CONSEQUENCE[attempt.failure] is Consequence.RESTART and not attempt.progressed for attempt in pair)
    return len(pair) == _TWICE and restarts and all(attempt.blames(node) for attempt in pair)


def rebootable(view: Observation, history: History, reasons: Mapping[str, str]) -> dict[str, str]:
    """Return those of the ailing nodes (node -> why) that a reboot may cure, and whose instance has had none."""
    nodes = [node for node in view.nodes if node.name in reasons and node.reboot_cures]
    return {node.name: reasons[node.name] for node in nodes if node.instance and node.instance not in history.reboots}


def shared(view: Observation, sick: Sized, repairs_left: int) -> str:
    return shared_cause(sick, sum(node.fit for node in view.nodes), repairs_left)


def short_of(view: Observation, limit: int = 3) -> str:
    """Describe how many nodes are fit, and why the others are not."""
    unfit = [node for node in view.nodes if not node.fit]
    words = [f"{node.name}: {node.unfit or 'not Ready'}" for node in unfit[:limit]]
    omission = [f"{len(unfit) - limit} more unfit"] if len(unfit) > limit else []
    fit = sum(node.fit for node in view.nodes)
    return "; ".join([f"{fit} of {view.nodes_wanted} nodes are fit", *words, *omission])
