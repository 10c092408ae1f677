"""The Jobs that copy a checkpoint to S3 beside the training, and back before an attempt. The steward makes and watches
them; it waits for neither."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod

from infra.archive import archive_job
from infra.checkpoints.copies import CONFIG, CopiesConfig
from infra.cluster import attempts
from infra.cluster.confinement import NOBODY, ROOT, batch_job, container_context, environment, one_time_pod
from infra.cluster.gang import CAMPAIGN_LABEL, on_gpu_nodes, volumes
from infra.cluster.kubernetes import create
from infra.cluster.standing.placing import placed
from infra.errors import PermanentError
from infra.spec.names import ARCHIVE_ACCOUNT, COPY_COMMAND, FETCH_COMMAND
from infra.spec.standing import StandingCluster

ROLE_LABEL = "bivouac.dev/role"


class CopyJob(NamedTuple):
    name: str
    command: tuple[str, ...]
    user: int
    tries: int
    writes: bool
    """The shared tier, as root without capabilities, like the pods that train from it."""


COPY = CopyJob("copy", COPY_COMMAND, NOBODY, 1, False)
"""One try: the next one is due with the next interval."""
FETCH = CopyJob("fetch", FETCH_COMMAND, ROOT, 3, True)


_NO_WORD = "its pod ended without a word, was lost with its node, or did not end in its time"


class Ended(NamedTuple):
    told: dict[str, Any]
    """Summary of its program; empty after a failure."""
    error: str = ""


def manifest(job: CopyJob, campaign: str, image: str, longest: timedelta) -> dict[str, Any]:
    """Return the Job: on a GPU node, whose network is fast, without a GPU and without any claim on its processors and
    memory, so that it takes only what the training leaves."""
    pod_volumes, mounts = volumes(job.name)
    names = {"config", "shared"}
    mounts = [
        mount if mount["name"] == "config" else mount | {"readOnly": not job.writes}
        for mount in mounts
        if mount["name"] in names and mount.get("subPath") != "data"
    ]
    labels = {CAMPAIGN_LABEL: campaign, ROLE_LABEL: job.name}
    container = {
        "name": job.name,
        "image": image,
        "command": list(job.command),
        "env": environment(),
        "securityContext": container_context(),
        "volumeMounts": mounts,
    }
    pod_volumes = [volume for volume in pod_volumes if volume["name"] in names]
    pod = one_time_pod(ARCHIVE_ACCOUNT, job.user, pod_volumes, container, **on_gpu_nodes())
    limit_s = int(longest.total_seconds())
    return batch_job(job.name, labels, pod, backoffLimit=job.tries - 1, activeDeadlineSeconds=limit_s)


def start(
    client: Client,
    job: CopyJob,
    config: CopiesConfig,
    image: str,
    longest: timedelta,
    cluster: StandingCluster | None = None,
    left_out: Sequence[str] = (),
) -> None:
    """Create the Job and its configuration; one that exists stays. `cluster`: the existing one that it is for;
    `left_out`: its nodes that the Job must not get."""
    files = {CONFIG: config.model_dump_json(indent=1)}
    attempts.create_config(client, job.name, {CAMPAIGN_LABEL: config.campaign}, files)
    create(client, from_dict(placed(manifest(job, config.campaign, image, longest), cluster, left_out)))


def is_there(client: Client, job: CopyJob) -> bool:
    return bool(archive_job.status_of(client, job.name))


def pods(client: Client, job: CopyJob) -> list[Pod]:
    return list(client.list(Pod, labels={ROLE_LABEL: job.name}))


def result_of(client: Client, job: CopyJob) -> Ended | None:
    """Return how the Job ended; None while it runs. A Job that is gone, or was ended at its deadline, has failed."""
    status = archive_job.status_of(client, job.name)
    if status.get("leaving") or not status:
        return Ended({}, "its job is gone: somebody removed it")
    if status.get("succeeded"):
        try:
            return Ended(archive_job.verdict_of(pods(client, job)))
        except PermanentError as error:
            return Ended({}, str(error))
    if status.get("over") or status.get("failed", 0) >= job.tries:
        return Ended({}, archive_job.last_message(pods(client, job)) or _NO_WORD)
    return None
