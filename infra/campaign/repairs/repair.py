"""A repair of a living campaign: its stacks are read from AWS and brought to what the spec says. Where its file system
is lost, everything that mounts it ends before. The steward starts again after: it brings the newest copy back from S3
before it launches the next attempt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from lightkube import Client
from lightkube.resources.core_v1 import Pod

from infra.archive import archive_job
from infra.campaign.launch import deploy, recorded_config, withdraw
from infra.campaign.provision import job_data
from infra.checkpoints.copy_job import COPY, FETCH
from infra.data import dataset
from infra.engine.drift import StackLook, resources_of
from infra.engine.engine import Engine
from infra.engine.refusal import FILE_SYSTEM
from infra.engine.state_copy import stored_state
from infra.errors import PermanentError
from infra.preview.read_only import stacks
from infra.record.payloads.training import FileSystemReplaced
from infra.record.store import CampaignStore
from infra.session.context import Context
from infra.session.session import foundation_lease
from infra.spec.names import FOUNDATION_STACK, NAMESPACE, SHARED_CLAIM

_LEAVE_S = 600.0
"""Time for pods to leave: a gang may take its whole grace."""


def id_of(store: CampaignStore, stack: str) -> str | None:
    """Return the id of the campaign's file system by the engine's state; None without one."""
    systems = (row for row in resources_of(stored_state(store, stack)).values() if row["type"] == FILE_SYSTEM)
    return next((str(row["id"]) for row in systems if row.get("id")), None)


def let_go(context: Context) -> None:
    """End steward, gang and Jobs, and wait until no pod holds the claim on the file system: Kubernetes would keep the
    claim as long. Idempotent. Raises `PermanentError` with the pods that stay."""
    client = context.cluster_client()
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
    deploy(context.cluster_client(), context.store, config)
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


def carry_out(context: Context, looks: Sequence[StackLook]) -> None:
    """Repair the stacks that `looks` saw; idempotent. Raises `EngineFailed`, and `PermanentError` while pods hold a
    lost file system."""
    made_anew = any(row.verb == "create" and row.kind == FILE_SYSTEM for look in looks for row in look.planned)
    # A repair that was killed may have made the file system, and not started the steward.
    anew = made_anew or context.state().lost is not None
    if anew:
        context.progress.note(
            f"a new file system: training goes on from the copy of step {context.state().copied} in S3"
        )
        let_go(context)
    _apply(context, [look.stack for look in looks])
    if anew:
        go_on(context)
        context.store.append(FileSystemReplaced(id=id_of(context.store, context.names.stack) or ""))


def _apply(context: Context, names: Sequence[str]) -> None:
    engine = Engine(context, context.results / "pulumi")
    settings = stacks(context)
    for name in names:
        stack = engine.stack(name, settings[name]())
        context.progress.step(f"refreshing {name} from AWS")
        shared = foundation_lease(context) if name == FOUNDATION_STACK else nullcontext(context.lease)
        with shared as lease, engine.holding(lease):
            engine.refresh(stack)
            engine.up(stack)
        if name == FOUNDATION_STACK and not context.spec.prepares_data:
            # A bucket that was made again is empty; else this finds the manifest and does nothing.
            data, _ = job_data(context)
            dataset.upload(context.account, context.buckets.data, data.folder, data.digest, context.progress.step)
