"""The archive as a Job in the cluster: creation, watch and verdict. The steward uses it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from infra.archive.settings import ArchiveConfig
from infra.cluster import attempts
from infra.cluster.confinement import (
    NOBODY,
    READS_ALL,
    ROOT,
    batch_job,
    container_context,
    environment,
    one_time_pod,
)
from infra.cluster.gang import CAMPAIGN_LABEL, on_gpu_nodes, volumes
from infra.cluster.kubernetes import create, or_none
from infra.errors import PermanentError
from infra.spec.campaign import Spec
from infra.spec.names import ARCHIVE_ACCOUNT, ARCHIVE_COMMAND, ARCHIVE_ROOM
from trainer.contract import SHARED_CHECKPOINTS

NAME = "archive"
CONFIG = "archive"
TRIES = 3
_LAST = datetime.max.replace(tzinfo=UTC)
"""Sorts an end without a time last."""


@dataclass(frozen=True)
class Bounds:
    """Time limits of an archive: a Job that waits for a node would wait, and bill, without end."""

    start_within: timedelta
    """Limit until its first pod starts."""
    end_within: timedelta
    """Limit from that start."""
    end_by: datetime
    cure: str
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def over(self, has_begun: bool, seconds: float) -> str | None:
        """Return a sentence about the exceeded limit after `seconds`; None if none is exceeded."""
        if self.now() > self.end_by:
            return f"the archive did not end by the deadline, {self.end_by.isoformat(timespec='seconds')}"
        longest = self.start_within + (self.end_within if has_begun else timedelta())
        if seconds <= longest.total_seconds():
            return None
        return f"the archive {'did not end' if has_begun else 'found no GPU node'} within {longest}"


def out_of_cluster(spec: Spec) -> str:
    """Return the advice that needs no GPU node."""
    return f"`bivouac checkpoints restore {spec.campaign} FOLDER --tier shared` copies the checkpoint here"


def manifest(config: ArchiveConfig, image: str, accelerators: int) -> dict[str, Any]:
    """Return the Job: on a GPU node, since it evaluates the restored model; retried, since it is idempotent.

    Files in a job's own folder may be of any user and for that user alone: the archive of a workload reads them as root
    whom permissions do not bind, and cannot write where they lie.
    """
    pod_volumes, mounts = volumes(CONFIG, shares=not config.shared_tier)
    mounts = [place | {"readOnly": True} if place["mountPath"] == SHARED_CHECKPOINTS else place for place in mounts]
    user, rights = (ROOT, {"capabilities": READS_ALL}) if config.workload else (NOBODY, {})
    labels = {CAMPAIGN_LABEL: config.campaign, "bivouac.dev/role": "archive"}
    container = {
        "name": "archive",
        "image": image,
        "command": list(ARCHIVE_COMMAND),
        "env": environment(),
        "securityContext": container_context(**rights),
        "resources": {"limits": {"nvidia.com/gpu": str(accelerators)}},
        "volumeMounts": mounts,
    }
    room = {
        "name": "room",
        "image": image,
        "command": list(ARCHIVE_ROOM),
        "securityContext": container_context(runAsUser=ROOT, runAsGroup=ROOT, runAsNonRoot=False),
        "volumeMounts": [mount for mount in mounts if mount["name"] == "local"],
    }
    pod = one_time_pod(ARCHIVE_ACCOUNT, user, pod_volumes, container, **on_gpu_nodes(), initContainers=[room])
    return batch_job(NAME, labels, pod, backoffLimit=TRIES - 1)


def run(
    client: Client,
    config: ArchiveConfig,
    job: dict[str, Any],
    job_files: dict[str, str],
    bounds: Bounds,
    guard: Callable[[], None],
    pause: Callable[[], None],
    follow: Callable[[str], None],
) -> dict[str, Any]:
    """Run the Job, wait for it and return its report.

    Raises `PermanentError` if every try failed, or if a limit is exceeded; in that case the Job is removed.
    """
    guard()
    labels = {CAMPAIGN_LABEL: config.campaign}
    files = {"archive.json": config.model_dump_json(indent=1), **job_files}
    attempts.create_config(client, CONFIG, labels, files)
    _forget_failed(client, pause)
    create(client, from_dict(job))
    has_begun, start = False, time.monotonic()
    while True:
        guard()
        # The Job is read before its pods: if it reports an end, the later listing shows the pod's end too.
        status = status_of(client, NAME)
        pods = list(client.list(Pod, labels={"bivouac.dev/role": "archive"}))
        for pod in pods:
            if pod.status and pod.status.phase != "Pending" and pod.metadata:
                has_begun = True
                follow(str(pod.metadata.name))
        if status.get("succeeded"):
            return verdict_of(pods)
        if status.get("failed", 0) >= TRIES:
            raise PermanentError(
                "the archive failed", seen=last_message(pods) or "no message", cure="see the archive pods' logs"
            )
        if excess := bounds.over(has_begun, time.monotonic() - start):
            remove(client)
            raise PermanentError(excess, seen=_pod_states(pods), cure=bounds.cure)
        pause()


def _forget_failed(client: Client, pause: Callable[[], None]) -> None:
    """Remove a Job without tries left and wait for its deletion: a new request means that the cause is corrected."""
    while True:
        status = status_of(client, NAME)
        if status.get("failed", 0) >= TRIES:
            remove(client)
        elif not status.get("leaving"):
            return
        pause()


def remove(client: Client, name: str = NAME) -> None:
    or_none(lambda: client.delete(Job, name, cascade=CascadeType.BACKGROUND))


def status_of(client: Client, name: str) -> dict[str, int]:
    """Return a Job's counts; empty if there is none."""
    job = or_none(lambda: client.get(Job, name))
    if job is None:
        return {}
    status = job.status
    return {
        "leaving": int(job.metadata is not None and job.metadata.deletionTimestamp is not None),
        "succeeded": (status.succeeded if status else None) or 0,
        "failed": (status.failed if status else None) or 0,
        "over": int(any(c.type == "Failed" and c.status == "True" for c in (status and status.conditions) or ())),
    }


def _pod_states(pods: list[Pod]) -> str:
    """Return the state of the pods with Kubernetes' reasons, for a Job that did not end."""
    states = []
    for pod in pods:
        conditions = (pod.status.conditions if pod.status else None) or []
        reason = next((c.message for c in conditions if c.type == "PodScheduled" and c.status == "False"), None)
        name, phase = pod.metadata.name if pod.metadata else "", pod.status.phase if pod.status else "unknown"
        states.append(f"{name} {phase}" + (f": {reason}" if reason else ""))
    return "; ".join(states)[:500] or "its Job has no pod"


def _messages(pods: list[Pod]) -> list[tuple[str, str]]:
    """Return (phase, termination message) of each ended pod, in the order of their ends."""
    messages = []
    for pod in pods:
        for container in (pod.status.containerStatuses if pod.status else None) or ():
            if container.state and (end := container.state.terminated):
                messages.append(
                    (end.finishedAt or _LAST, str(pod.status.phase if pod.status else ""), end.message or "")
                )
    return [(phase, message) for _, phase, message in sorted(messages, key=itemgetter(0))]


def verdict_of(pods: list[Pod]) -> dict[str, Any]:
    """Return what the pod that succeeded has told; raise `PermanentError` if it is gone."""
    message = next((text for phase, text in _messages(pods) if phase == "Succeeded"), None)
    if message is None:
        raise PermanentError("the archive succeeded but its pod is gone", seen="no message", cure="run it again")
    verdict: dict[str, Any] = json.loads(message)
    return verdict


def last_message(pods: list[Pod]) -> str:
    """Return the message of the pod that ended last; empty without one."""
    messages = _messages(pods)
    return messages[-1][1][-500:] if messages else ""
