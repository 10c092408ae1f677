"""A repair of a living campaign: its stacks are read from AWS and brought to what the spec says. Where its file system
is lost, everything that mounts it ends before, and the steward starts again after."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from infra.campaign.provision import job_data
from infra.campaign.repairs.remount import go_on, let_go
from infra.data import dataset
from infra.engine.drift import Look
from infra.engine.engine import Engine
from infra.engine.refusal import FILE_SYSTEM
from infra.preview.read_only import stacks
from infra.record.payloads.training import FileSystemReplaced
from infra.session.context import Context
from infra.session.session import foundation_lease
from infra.spec.names import FOUNDATION_STACK


def carry_out(context: Context, looks: Sequence[Look]) -> None:
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
        context.store.append(FileSystemReplaced())


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
