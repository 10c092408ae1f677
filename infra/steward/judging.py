"""The job's own evaluation and export, by one pod of it, after training and before the archive.

The pod has the rights of a training pod and no more: the archive's role is for our own program. It cannot change the
checkpoints, which are read-only for it. A failure of the job's own commands is its judgement; only a pod that ends
without one is tried again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from lightkube.resources.core_v1 import Pod

from infra.cluster import attempts, pod_start
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL
from infra.cluster.kubernetes import JobSet
from infra.steward import gangs
from infra.steward.parts import Parts

CONFIG = "judge"
TRIES = 3
_SHIP_REST_S = 15.0


class Judged(NamedTuple):
    sha256: str = ""
    """Of the judgement, which lies on the shared tier."""
    unjudged: str = ""
    """Why there is none though the spec asks for it."""


def judge(steward: Parts, pause: Callable[[], None]) -> Judged:
    """Run the job's evaluation and export, within their time, and return what they came to."""
    config = steward.config
    if not config.judges:
        return Judged()
    left = config.deadline - steward.clock.now() - config.bare_archive
    if left < config.judging:
        return Judged(unjudged=f"the deadline {config.deadline.isoformat(timespec='seconds')} leaves no time for it")
    reason = ""
    for number in range(1, TRIES + 1):
        _launch(steward, number)
        result = _watch(steward, number, pause)
        if isinstance(result, Judged):
            return result
        reason = result
    return Judged(unjudged=f"its pod ended {TRIES} times without a word of its own: {reason}")


def forget(steward: Parts) -> None:
    """Remove the pods: a new archive judges anew."""
    for number in range(1, TRIES + 1):
        attempts.remove(steward.client, JobSet, gangs.judge(steward.config, number, CONFIG).name)


def _launch(steward: Parts, number: int) -> None:
    steward.lease.check()
    config = steward.config
    labels = {CAMPAIGN_LABEL: config.spec.campaign}
    attempts.create_config(steward.client, CONFIG, labels, config.gang_files)
    attempts.launch(steward.client, gangs.judge(config, number, CONFIG), config.spec.cluster, steward.nodes.left_out)


def _watch(steward: Parts, number: int, pause: Callable[[], None]) -> Judged | str:
    """Wait for the pod of a try. Return what it came to, or why it ended without that."""
    config, clock = steward.config, steward.clock
    name = gangs.judge(config, number, CONFIG).name
    end_s = clock.monotonic() + config.spec.capacity_timeout.total_seconds()
    running = False
    while True:
        steward.lease.check()
        pod = _pod(steward, name)
        if pod is not None and pod_start.has_started(pod):
            steward.logs.follow(pod_start.name_of(pod))
            if not running:
                running, end_s = True, clock.monotonic() + _longest(steward).total_seconds()
        if pod is not None and pod_start.is_over(pod):
            steward.logs.wait_for([pod_start.name_of(pod)], _SHIP_REST_S)
            steward.logs.flush()  # the archive copies it from the bucket
            return _judgement_of(pod)
        late = clock.now() + config.bare_archive > config.deadline
        if late or clock.monotonic() > end_s:
            attempts.remove(steward.client, JobSet, name)
            return Judged(unjudged=_overdue(pod, running, late))
        pause()


def _longest(steward: Parts) -> timedelta:
    """The commands have times of their own; beside them the checkpoint is compared with its digests."""
    return steward.config.judging + steward.config.bare_archive


def _overdue(pod: Pod | None, running: bool, late: bool) -> str:
    if late:
        return "it was ended, since the time to the deadline is for the archive"
    if running:
        return "its pod did not end in time"
    return f"its pod did not start: {pod_start.why_not(pod, '') if pod is not None else 'no pod is there'}"


def _pod(steward: Parts, name: str) -> Pod | None:
    labels = {CAMPAIGN_LABEL: steward.config.spec.campaign, ATTEMPT_LABEL: "0"}
    judge_pods = [pod for pod in attempts.pods(steward.client, labels) if pod_start.name_of(pod).startswith(f"{name}-")]
    return max(judge_pods, key=pod_start.name_of, default=None)


def _judgement_of(pod: Pod) -> Judged | str:
    """Return the judgement that the pod told, or what else is known of its end."""
    end = pod_start.ending(pod)
    if end is None:
        return pod_start.why_not(pod, "")
    try:
        verdict: Any = json.loads(end.message or "")
    except (ValueError, RecursionError):
        verdict = None
    if isinstance(verdict, dict) and verdict.get("judgement"):
        return Judged(sha256=str(verdict["judgement"]))
    detail = str(verdict.get("detail", "")) if isinstance(verdict, dict) else ""
    return detail or f"exit code {end.exitCode}{f', {end.reason}' if end.reason else ''}"
