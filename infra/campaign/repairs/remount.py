"""A new file system under a campaign that trains: everything that mounts the lost one ends, and the steward starts
again, which brings the newest copy back from S3 before it launches the next attempt."""

from __future__ import annotations

from lightkube import Client
from lightkube.resources.core_v1 import Pod

from infra.archive import archive_job
from infra.campaign.launch import deploy, recorded_config, withdraw
from infra.checkpoints.copy_job import COPY, FETCH
from infra.cluster.kubernetes import from_outside
from infra.errors import PermanentError
from infra.session.context import Context
from infra.spec.names import NAMESPACE, SHARED_CLAIM

_LEAVE_S = 600.0
"""Time for pods to leave: a gang may take its whole grace."""


def let_go(context: Context) -> None:
    """End steward, gang and Jobs, and wait until no pod holds the claim on the file system: Kubernetes would keep the
    claim as long. Idempotent. Raises `PermanentError` with the pods that stay."""
    client = from_outside(context.account, context.names.cluster)
    context.guard()
    withdraw(context, client)
    for name in (archive_job.NAME, COPY.name, FETCH.name):
        archive_job.remove(client, name)
    left: list[str] = []
    for _ in context.turns(_LEAVE_S):
        left = _mounting(client)
        if not left:
            return
        context.progress.step(f"{len(left)} pods that mount the lost file system are ending: {', '.join(left[:3])}")
    raise PermanentError(
        "pods still mount the lost file system",
        seen=", ".join(left),
        cure=f"end them: `bivouac shell {context.spec.campaign} -- kubectl delete pod --force NAME`, and repair again",
    )


def go_on(context: Context) -> None:
    """Start the steward with the configuration in force; one that was never launched starts with `bivouac run`."""
    config = recorded_config(context.store, context.state().version)
    if config is None:
        return
    context.guard()
    deploy(from_outside(context.account, context.names.cluster), context.store, config)
    context.progress.note(
        "the steward starts again: it brings the newest copy back from S3, and training goes on from there"
    )


def _mounting(client: Client) -> list[str]:
    return sorted(
        str(pod.metadata.name)
        for pod in client.list(Pod, namespace=NAMESPACE)
        if pod.metadata and pod.spec and any(_is_shared(volume) for volume in pod.spec.volumes or ())
        and (pod.status is None or pod.status.phase not in ("Succeeded", "Failed"))
    )  # fmt: skip


def _is_shared(volume: object) -> bool:
    claim = getattr(volume, "persistentVolumeClaim", None)
    return claim is not None and claim.claimName == SHARED_CLAIM
