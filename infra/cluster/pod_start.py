"""The start of a pod, and why it has not started: from its container, the scheduler and its last warning."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx2
from lightkube import Client
from lightkube.models.core_v1 import ContainerState, ContainerStateTerminated
from lightkube.resources.core_v1 import Event, Pod

from infra.tables import table

_NEVER_RAN = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a terminated container whose process never began (containerd's and Docker's)."""
_NOT_ITS_TURN = "PodInitializing"
"""Reason of a container that waits for an init container."""
_LONGEST = 300
"""Length in characters to which messages are cut."""
_CURES: list[dict[str, Any]] = table("infra.cluster", "pod_start")


def name_of(pod: Pod) -> str:
    return str(pod.metadata.name if pod.metadata else "")


def node_of(pod: Pod) -> str:
    """Return the pod's node; empty until the scheduler has found one."""
    return str((pod.spec.nodeName if pod.spec else None) or "")


def is_over(pod: Pod) -> bool:
    return pod.status is not None and pod.status.phase in ("Succeeded", "Failed")


def ending(pod: Pod) -> ContainerStateTerminated | None:
    """Return how the container's process ended; None when it has not ended or never began."""
    ends = [state.terminated for state in states(pod) if state.terminated is not None]
    return next((end for end in ends if end.reason not in _NEVER_RAN), None)


def has_started(pod: Pod) -> bool:
    return ending(pod) is not None or any(state.running is not None for state in states(pod))


def why_not(pod: Pod, warning: str) -> str:
    """Return why a pod has not started; `warning`: its last one from `warnings`."""
    reasons = list(_words(pod)) or [
        "the kubelet of its node has said nothing" if node_of(pod) else "no node is chosen yet"
    ]
    return "; ".join([*reasons, *([f"last warning: {warning}"] if warning else [])])


def cure_of(words: str) -> str:
    """Return what to look at first; empty when no mark is in the words."""
    text = words.lower()
    return next((row["cure"] for row in _CURES if any(mark in text for mark in row["marks"])), "")


def last_words(client: Client, pod: str) -> str:
    """Return the last lines of a pod's log, or why there are none."""
    try:
        return " | ".join(client.log(pod, tail_lines=5, newlines=False))[-400:] or "its log is empty"
    except httpx2.HTTPError as error:
        return f"no log: {error}"


def warnings(client: Client) -> dict[str, str]:
    """Return name of a pod or other object -> its last warning, for the client's namespace."""
    newest: dict[str, tuple[datetime, str]] = {}
    for event in client.list(Event, fields={"type": "Warning"}):
        subject, time = str(event.involvedObject.name), _time_of(event)
        if event.type == "Warning" and (subject not in newest or time >= newest[subject][0]):
            newest[subject] = time, f"{event.reason}: {' '.join((event.message or '').split())[:_LONGEST]}"
    return {subject: words for subject, (_, words) in newest.items()}


def _time_of(event: Event) -> datetime:
    series = event.series.lastObservedTime if event.series else None
    creation = event.metadata.creationTimestamp if event.metadata else None
    time = series or event.lastTimestamp or event.eventTime or event.firstTimestamp or creation
    return time if time is not None else datetime.min.replace(tzinfo=UTC)


def states(pod: Pod) -> list[ContainerState]:
    """Return the states of the pod's containers. Of its init containers only those in its way: a failed one, which is
    the first, or one that waits."""
    status = pod.status
    init_rows, rows = (status.initContainerStatuses or (), status.containerStatuses or ()) if status else ((), ())
    init_states = [row.state for row in init_rows if row.state is not None]
    failures = [state for state in init_states if state.terminated is not None and state.terminated.exitCode]
    waiting = [state for state in init_states if state.waiting is not None and state.waiting.reason != _NOT_ITS_TURN]
    return [*failures, *waiting, *(row.state for row in rows if row.state is not None)]


def _words(pod: Pod) -> Iterator[str]:
    status = pod.status
    if status is not None and status.reason:
        yield _reason_text(status.reason, status.message)
    for state in states(pod):
        if state.waiting is not None:
            yield _reason_text(state.waiting.reason, state.waiting.message)
        elif state.terminated is not None:
            yield _reason_text(state.terminated.reason, state.terminated.message)
    for condition in (status.conditions if status else None) or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            yield _reason_text(condition.reason, condition.message)


def _reason_text(reason: str | None, message: str | None) -> str:
    words = " ".join((message or "").split())[:_LONGEST]
    return ": ".join(part for part in (reason, words) if part) or "no reason is given"
