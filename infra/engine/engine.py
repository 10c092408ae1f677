"""The real Pulumi engine through its Automation API: inline programs, state in the campaign's own S3 backend."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pulumi import automation as auto

from infra.engine.adoption import (
    Failed,
    Pending,
    adoptable,
    passes,
    pending_creates,
    refuse,
    remove_rules,
    resolved,
    still_creating,
)
from infra.engine.command import LeashedCommand
from infra.engine.failures import EngineFailed, Watch
from infra.engine.liveness import Life, life
from infra.engine.locks import unlock
from infra.engine.refusal import refuse_loss
from infra.engine.state_copy import PASSPHRASE
from infra.errors import PermanentError
from infra.kinds import kind_of_type
from infra.record.lease import Lease
from infra.session.context import Context
from infra.spec.names import PROJECT
from infra.stack.program import program

LATE_S = 10.0
"""A request that was under way when its engine died may be carried out, and listed, so much later."""
_READY_S = 1800.0


class Engine:
    """Stacks of one account; every operation announces each resource as the engine handles it."""

    def __init__(self, context: Context, work: Path) -> None:
        self.context = context
        self.backend = f"s3://{context.buckets.state}?region={context.account.region}&awssdk=v2"
        self.work = work
        self.leases = [context.lease]
        """Every operation is covered by all of them."""
        self.watch = Watch()
        """Of the operation that runs, or of the last one."""

    def stack(self, name: str, config: Mapping[str, str]) -> auto.Stack:
        self.work.mkdir(parents=True, exist_ok=True)
        try:
            options = auto.LocalWorkspaceOptions(
                work_dir=str(self.work),
                pulumi_command=LeashedCommand(self.leases, self.context.spec.campaign, self.context.progress.note),
                project_settings=auto.ProjectSettings(
                    name=PROJECT, runtime="python", backend=auto.ProjectBackend(url=self.backend)
                ),
                # Nothing secret is in the state; who wants encryption sets a passphrase of their own.
                env_vars={PASSPHRASE: os.environ.get(PASSPHRASE, "")},
            )
            stack = auto.create_or_select_stack(name, project_name=PROJECT, program=program, opts=options)
            stack.set_all_config({key: auto.ConfigValue(value) for key, value in config.items()})
        except FileNotFoundError as error:
            raise PermanentError("there is no Pulumi engine", seen=error, cure="see `bivouac doctor`") from error
        except auto.CommandError as error:
            raise _refusal("opening", name, error) from error
        return stack

    def up(self, stack: auto.Stack) -> dict[str, Any]:
        """Bring the stack up; what a killed run left pending is resolved first. Returns the outputs."""
        with self._operation("pulumi up", stack) as watch:
            refuse_loss(self.context, stack)
            self._resolve(stack)
            result = stack.up(on_event=self._announce("creating", watch), on_output=_quiet)
        return {name: output.value for name, output in result.outputs.items()}

    def destroy(self, stack: auto.Stack) -> None:
        """Destroy the stack and forget it. Raises `EngineFailed`; all that does not depend on what failed is gone."""
        with self._operation("pulumi destroy", stack) as watch:
            self._resolve(stack, self._told)
            # What can go goes, though something else stays: each hour of it bills.
            destroying = self._announce("destroying", watch)
            stack.destroy(on_event=destroying, on_output=_quiet, continue_on_error=True)
            stack.workspace.remove_stack(stack.name)

    def clear_broken(self, stack: auto.Stack) -> tuple[str, ...]:
        """Destroy what an earlier `up` made but could not bring to life, and what hangs on it; their types and names.

        The engine holds such a resource as made and would only update it: with nothing to change, a failed add-on or
        node group would pass for a good one. What only lost the engine that waited for it is awaited and taken for
        good. Only for stacks that carry no training yet.
        """
        with self._operation("clearing what failed", stack) as watch:
            self._resolve(stack)
            broken = self._come_to_life(stack)
            if broken:
                clearing = self._announce("clearing", watch)
                stack.destroy(on_event=clearing, on_output=_quiet, target=list(broken), target_dependents=True)
        return tuple(broken.values())

    def _come_to_life(self, stack: auto.Stack) -> dict[str, str]:
        """Wait for what AWS still creates, and note in the state what is there; urn -> type and name of the rest."""
        resources = (stack.export_stack().deployment or {}).get("resources", [])
        unseen = {one["urn"]: one for one in resources if one.get("initErrors")}
        names = {urn: f"{one['type'].rpartition(':')[2]} {urn.rpartition('::')[2]}" for urn, one in unseen.items()}
        for _ in self.context.turns(_READY_S):
            lives = {urn: life(self.context.account, one) for urn, one in unseen.items()}
            if not (coming := [names[urn] for urn, how in lives.items() if how is Life.COMING]):
                break
            self.context.progress.step(f"still being created: {', '.join(coming)}")
        if there := [urn for urn, how in lives.items() if how is Life.THERE]:
            self.context.progress.note(f"created meanwhile: {', '.join(names[urn] for urn in there)}")
            stack.refresh(on_event=self._announce("looking at", Watch()), on_output=_quiet, target=there)
        return {urn: names[urn] for urn, how in lives.items() if how is not Life.THERE}

    def refresh(self, stack: auto.Stack) -> None:
        """Take AWS's word for what the stack holds. Raises `EngineFailed`."""
        with self._operation("pulumi refresh", stack) as watch:
            stack.refresh(on_event=self._announce("looking at", watch), on_output=_quiet)

    def amend(self, stack: auto.Stack, change: Callable[[Mapping[str, Any]], dict[str, Any] | None]) -> None:
        """Store what `change` makes of the deployment, nothing where it makes none. Raises `EngineFailed`.

        An operation as any other: the CLI stores nothing in a stack that a dead engine has left locked.
        """
        with self._operation("a change of the state", stack):
            exported = stack.export_stack()
            changed = change(exported.deployment or {})
            if changed is not None:
                self.context.guard()
                exported.deployment = changed
                stack.import_stack(exported)

    def resources(self, stack: auto.Stack) -> int:
        """How many the state holds. Raises `EngineFailed`."""
        with _refused("a look at the state", stack):
            return len((stack.export_stack().deployment or {}).get("resources", []))

    def _resolve(self, stack: auto.Stack, failed: Failed = refuse) -> None:
        """What a killed engine left pending: creations that AWS carried out are adopted; all is looked at anew.

        `failed`: what becomes of one of which nobody can say whether it was.
        """
        exported = stack.export_stack()
        deployment = exported.deployment or {}
        pending = deployment.get("pending_operations")
        if not pending:
            return
        account, say = self.context.account, self.context.progress
        found = self._adopted(deployment, failed)
        removed = remove_rules(account, deployment, self.context.guard, failed)
        adopted = ", ".join(f"{urn.split('::')[2].rpartition(':')[2]} {id}" for urn, id in found.items())
        say.note(
            f"{len(pending)} operations were cut short; adopted: {adopted or 'none'}"
            + (f"; removed to be made anew: {', '.join(removed)}" if removed else "")
        )
        exported.deployment, look = resolved(deployment, found)
        self.context.guard()
        stack.import_stack(exported)
        if look:
            stack.refresh(on_event=self._announce("looking at", Watch()), on_output=_quiet, target=look)

    def _told(self, pending: Pending, error: Exception) -> None:
        """A teardown counts it as not found: what carries the campaign's tag is swept after it."""
        if passes(error):
            raise error
        words = f"{pending.title}, cut short in its creation, could not be looked for and counts as never made"
        self.context.progress.note(f"{words} ({type(error).__name__}: {error})"[:400])

    def _adopted(self, deployment: Mapping[str, Any], failed: Failed) -> dict[str, str]:
        """Urn -> id of creations that were carried out, once they are ready."""
        account, cluster, say = self.context.account, self.context.names.cluster, self.context.progress
        found: dict[str, str] = {}
        wanted = sum(kind_of_type(one.type).find is not None for one in pending_creates(deployment))
        unseen: dict[str, tuple[Pending, Exception]] = {}

        def unsure(pending: Pending, error: Exception) -> None:
            if passes(error):
                raise error
            unseen[pending.urn] = (pending, error)

        for _ in self.context.turns(LATE_S):
            say.step(f"looking for {wanted} creations that a killed engine left pending")
            unseen.clear()
            found = adoptable(account, cluster, deployment, unsure)
            if len(found) + len(unseen) >= wanted:
                break
        for pending, error in unseen.values():
            failed(pending, error)
        for _ in self.context.turns(_READY_S):
            if not (creating := still_creating(account, deployment, found)):
                break
            say.step(f"still being created: {', '.join(creating)}")
        return found

    @contextmanager
    def holding(self, lease: Lease) -> Iterator[None]:
        """Operations in this block are covered by one more lease."""
        self.leases.append(lease)
        try:
            yield
        finally:
            self.leases.remove(lease)

    @contextmanager
    def _operation(self, what: str, stack: auto.Stack) -> Iterator[Watch]:
        """One operation: before it, no lock of a dead engine, and every lease is ours."""
        watch = self.watch = Watch()
        with _refused(what, stack, watch):
            unlock(self.context, stack, self.leases)
            for lease in self.leases:
                lease.check()
            yield watch

    def _announce(self, verb: str, watch: Watch) -> Callable[[auto.EngineEvent], None]:
        def on_event(event: auto.EngineEvent) -> None:
            if watch.hear(event) and (said := watch.sentence(verb)):
                self.context.progress.step(said)

        return on_event


def _quiet(_: str) -> None:
    return None


@contextmanager
def _refused(what: str, stack: auto.Stack, watch: Watch | None = None) -> Iterator[None]:
    """What the CLI refuses in this block, to the smallest look, is raised in our own words."""
    try:
        yield
    except auto.CommandError as error:
        raise _refusal(what, stack.name, error, watch) from error


def _refusal(what: str, stack: str, error: auto.CommandError, watch: Watch | None = None) -> EngineFailed:
    # A program that was cut short leaves its coroutine behind. Collected in the middle of a compile, as of a module's
    # first import, it broke that one ("AST constructor recursion depth mismatch", CPython 3.11).
    gc.collect()
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line.startswith("* ") or ("error:" in line and not line.endswith("occurred:"))]
    words = " | ".join(dict.fromkeys(telling))[:1500] or str(error)[-800:]
    return EngineFailed(what, stack, watch.failures if watch else (), words)
