"""The Pulumi engine through its Automation API: inline programs, state in the account's S3 bucket."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pulumi import automation as auto
from pulumi.automation._stack import StackInitMode

from infra.engine.adoption import (
    Failed,
    Life,
    Pending,
    adoptable,
    life,
    passes,
    pending_creates,
    refuse,
    remove_rules,
    resolve_pending,
    still_creating,
)
from infra.engine.command import LeashedCommand
from infra.engine.failures import EngineFailed, OperationWatch
from infra.engine.kubernetes_state import deleted_with_others, without_resources
from infra.engine.locks import unlock
from infra.engine.refusal import refuse_loss
from infra.engine.state_copy import (
    FORMAT_VERSION,
    SECRET_MARK,
    backend,
    deployment_of,
    passphrase,
    provider,
    stack_settings,
    stored_state,
)
from infra.errors import PermanentError
from infra.kinds import kind_of_type
from infra.record.lease import Lease
from infra.session.context import Context
from infra.session.session import ENGINE_TTL
from infra.spec import waits
from infra.spec.names import PROJECT
from infra.stack.program import program, unprotect

LATE_S = 10.0
"""Time after an engine's death until its last request is carried out and listed."""

_NO_SUMMARY = auto.UpdateSummary("", datetime.min, "", {}, {}, "")


class EngineStack(auto.Stack):
    """A stack whose operations end without a start of the CLI for a summary that nobody reads."""

    def info(self, show_secrets: bool = True) -> auto.UpdateSummary:
        return _NO_SUMMARY


class EngineWorkspace(auto.LocalWorkspace):
    """A workspace with fewer starts of the CLI, each of which takes a quarter of a second."""

    def __init__(self, stored: Callable[[str], Mapping[str, Any] | None], **options: Any) -> None:
        """`stored`: reads a stack's checkpoint file; None where there is none."""
        super().__init__(**options)
        self._stored = stored

    def select_stack(self, stack_name: str) -> None:
        """Select nothing: every operation names its stack. Raises `StackNotFoundError` where it has to be made."""
        if self._stored(stack_name) is None:
            raise auto.StackNotFoundError(auto.CommandResult(stdout="", stderr="no stack named", code=1))

    def set_all_config(self, stack_name: str, config: auto.ConfigMap, *, path: bool = False) -> None:
        """Write the configuration, of which nothing is secret, into the stack's file, as the CLI does."""
        try:
            settings = self.stack_settings(stack_name)
        except (FileNotFoundError, AttributeError, TypeError, yaml.YAMLError):
            settings = auto.StackSettings()  # none, or half a file of a killed driver: the state has what counts
        settings.config = {key: item.value for key, item in config.items()}
        self.save_stack_settings(stack_name, settings)

    def stack_outputs(self, stack_name: str) -> auto.OutputMap:
        """Read the checkpoint file, where its format is known and no output is secret."""
        document = self._stored(stack_name) or {}
        resources = deployment_of(document).get("resources", ()) if document.get("version") == FORMAT_VERSION else ()
        values = next((item.get("outputs", {}) for item in resources if item["type"] == "pulumi:pulumi:Stack"), None)
        if values is None or SECRET_MARK in json.dumps(values):
            words = ["stack", "output", "--json", "--show-secrets", "--stack", stack_name]
            values = json.loads(self._run_pulumi_cmd_sync(words).stdout)
        return {name: auto.OutputValue(value, secret=True) for name, value in values.items()}


class Engine:
    """Stacks of one account; every operation shows each resource as the engine handles it."""

    def __init__(self, context: Context, work: Path) -> None:
        self.context = context
        self.backend = backend(context.buckets.state, context.account.region)
        self.work = work
        self.leases = [context.lease]
        """Every operation needs all of them."""
        self.watch = OperationWatch()
        """The running operation, or the last one."""

    def stack(self, name: str, config: Mapping[str, str], key_arn: str | None = None) -> auto.Stack:
        """Open the stack, or make it. `key_arn`: of the KMS key for the secrets of a new one."""
        self.work.mkdir(parents=True, exist_ok=True)
        document = stored_state(self.context.store, name)
        settings = stack_settings(document)
        try:
            workspace = EngineWorkspace(
                partial(stored_state, self.context.store),
                work_dir=str(self.work),
                program=program,
                pulumi_command=LeashedCommand(self.leases, self.context.spec.campaign, self.context.progress.note),
                project_settings=auto.ProjectSettings(name=PROJECT, runtime="python", main=os.getcwd()),
                env_vars=passphrase() | self.backend,
                secrets_provider=provider(key_arn, self.context.account.region),
                stack_settings={name: auto.StackSettings._deserialize(settings)} if settings else None,
            )
            stack = EngineStack(name, workspace, StackInitMode.CREATE_OR_SELECT)
            stack.set_all_config({key: auto.ConfigValue(value) for key, value in config.items()})
        except FileNotFoundError as error:
            raise PermanentError("there is no Pulumi engine", seen=error, cure="see `bivouac doctor`") from error
        except auto.CommandError as error:
            raise _refusal("opening", name, error) from error
        return stack

    def up(self, stack: auto.Stack) -> dict[str, Any]:
        """Bring the stack up, after resolving what a killed run left pending. Returns the outputs."""
        with self._operation("pulumi up", stack) as watch:
            refuse_loss(self.context, stack)
            self._resolve(stack)
            result = stack.up(on_event=self._announce("creating", watch), on_output=_quiet)
        return {name: output.value for name, output in result.outputs.items()}

    def destroy(self, stack: auto.Stack) -> None:
        """Destroy the stack and remove it. Raises `EngineFailed`, after deleting all that does not depend on what
        failed."""
        with self._operation("pulumi destroy", stack) as watch:
            self._resolve(stack, self._note_unsure)
            self._unprotect(stack, deleted_with_others)
            # Destroy all that can go even if something fails: each hour of it bills.
            destroying = self._announce("destroying", watch)
            stack.destroy(on_event=destroying, on_output=_quiet, continue_on_error=True)
            stack.workspace.remove_stack(stack.name)

    def clear_broken(self, stack: auto.Stack) -> tuple[str, ...]:
        """Destroy what an earlier `up` made but failed to start, and its dependents; return their types and names.

        The engine would count a failed add-on or node group as made and, with nothing to change, as good. A resource
        whose engine died while it waited is awaited and kept. Only for stacks without training.
        """
        with self._operation("clearing what failed", stack) as watch:
            self._resolve(stack)
            broken = self._come_to_life(stack)
            if broken:
                self._unprotect(stack)
                clearing = self._announce("clearing", watch)
                stack.destroy(on_event=clearing, on_output=_quiet, target=list(broken), target_dependents=True)
        return tuple(broken.values())

    def _come_to_life(self, stack: auto.Stack) -> dict[str, str]:
        """Wait for what AWS still creates and record what is ready; return urn -> type and name of the rest."""
        if not any(resource.get("initErrors") for resource in self._deployment(stack).get("resources", ())):
            return {}
        resources = (stack.export_stack().deployment or {}).get("resources", [])
        unseen = {resource["urn"]: resource for resource in resources if resource.get("initErrors")}
        names = {
            urn: f"{resource['type'].rpartition(':')[2]} {urn.rpartition('::')[2]}" for urn, resource in unseen.items()
        }
        for _ in self.context.turns(waits.CREATION.seconds):
            lives = {urn: life(self.context.account, resource) for urn, resource in unseen.items()}
            if not (coming := [names[urn] for urn, state in lives.items() if state is Life.COMING]):
                break
            self.context.progress.step(f"still being created: {', '.join(coming)}")
        if ready := [urn for urn, state in lives.items() if state is Life.THERE]:
            self.context.progress.note(f"created meanwhile: {', '.join(names[urn] for urn in ready)}")
            stack.refresh(on_event=self._announce("looking at", OperationWatch()), on_output=_quiet, target=ready)
        return {urn: names[urn] for urn, state in lives.items() if state is not Life.THERE}

    def refresh(self, stack: auto.Stack) -> None:
        """Read the stack's resources from AWS into the state. Raises `EngineFailed`."""
        with self._operation("pulumi refresh", stack) as watch:
            stack.refresh(on_event=self._announce("looking at", watch), on_output=_quiet)

    def amend(self, stack: auto.Stack, change: Callable[[Mapping[str, Any]], dict[str, Any] | None]) -> None:
        """Store the deployment that `change` returns, unless None. Raises `EngineFailed`. It is an operation with
        leases and unlocking: the CLI stores nothing in a stack that a dead engine left locked."""
        with self._operation("a change of the state", stack):
            export = self._export(stack)
            new = change(export.deployment or {})
            if new is not None:
                self.context.guard()
                export.deployment = new
                stack.import_stack(export)

    def resources(self, stack: auto.Stack) -> int:
        """Return the number of resources in the state. Raises `EngineFailed`."""
        with _converted_errors("a look at the state", stack):
            return len(self._deployment(stack).get("resources", ()))

    def _deployment(self, stack: auto.Stack) -> Mapping[str, Any]:
        return self._export(stack).deployment or {}

    def _export(self, stack: auto.Stack) -> auto.Deployment:
        """Return the stored deployment with its secrets encrypted: S3 answers it without a start of the engine. Of a
        later format the engine itself says what belongs to it."""
        document = stored_state(self.context.store, stack.name)
        if document is None or document.get("version") != FORMAT_VERSION:
            return stack.export_stack()
        return auto.Deployment(version=FORMAT_VERSION, deployment=dict(deployment_of(document)))

    def _unprotect(
        self, stack: auto.Stack, needless: Callable[[Mapping[str, Any]], set[str]] = lambda deployment: set()
    ) -> None:
        """Lift the protection, and forget what `needless` names: the caller has seen that nothing is lost with what
        holds state."""
        export = self._export(stack)
        deployment = export.deployment or {}
        urns = needless(deployment)
        if unprotect(deployment.get("resources", ())) or urns:
            export.deployment = without_resources(deployment, urns) if urns else deployment
            stack.import_stack(export)

    def _resolve(self, stack: auto.Stack, on_failure: Failed = refuse) -> None:
        """Resolve what a killed engine left pending: adopt what AWS carried out, and refresh it. `on_failure` is called
        for a creation of which nobody can say whether it was carried out."""
        if not self._deployment(stack).get("pending_operations"):
            return
        export = stack.export_stack()
        deployment = export.deployment or {}
        pending = deployment["pending_operations"]
        account, say = self.context.account, self.context.progress
        ids = self._adopt(deployment, on_failure)
        rules = remove_rules(account, deployment, self.context.guard, on_failure)
        names = ", ".join(f"{urn.split('::')[2].rpartition(':')[2]} {id}" for urn, id in ids.items())
        say.note(
            f"{len(pending)} operations were interrupted; adopted: {names or 'none'}"
            + (f"; removed to be made again: {', '.join(rules)}" if rules else "")
        )
        export.deployment, look = resolve_pending(deployment, ids)
        self.context.guard()
        stack.import_stack(export)
        if look:
            stack.refresh(on_event=self._announce("looking at", OperationWatch()), on_output=_quiet, target=look)

    def _note_unsure(self, pending: Pending, error: Exception) -> None:
        """Count it as not made, in a teardown: the sweep after it removes what carries the campaign's tag."""
        if passes(error):
            raise error
        words = f"the interrupted creation of {pending.title} could not be looked up and counts as never made"
        self.context.progress.note(f"{words} ({type(error).__name__}: {error})"[:400])

    def _adopt(self, deployment: Mapping[str, Any], on_failure: Failed) -> dict[str, str]:
        """Return urn -> id of creations that AWS carried out, once they are ready."""
        account, cluster, say = self.context.account, self.context.names.cluster, self.context.progress
        ids: dict[str, str] = {}
        count = sum(kind_of_type(creation.type).find is not None for creation in pending_creates(deployment))
        unseen: dict[str, tuple[Pending, Exception]] = {}

        def unsure(pending: Pending, error: Exception) -> None:
            if passes(error):
                raise error
            unseen[pending.urn] = (pending, error)

        for _ in self.context.turns(LATE_S):
            say.step(f"looking for {count} creations that a killed engine left pending")
            unseen.clear()
            ids = adoptable(account, cluster, deployment, unsure)
            if len(ids) + len(unseen) >= count:
                break
        for pending, error in unseen.values():
            on_failure(pending, error)
        for _ in self.context.turns(waits.CREATION.seconds):
            if not (creating := still_creating(account, deployment, ids)):
                break
            say.step(f"still being created: {', '.join(creating)}")
        return ids

    @contextmanager
    def holding(self, lease: Lease) -> Iterator[None]:
        """Run the block's operations under one more lease."""
        self.leases.append(lease)
        try:
            yield
        finally:
            self.leases.remove(lease)

    @contextmanager
    def _operation(self, title: str, stack: auto.Stack) -> Iterator[OperationWatch]:
        """Prepare one operation: remove a dead engine's lock and check every lease."""
        watch = self.watch = OperationWatch()
        with _converted_errors(title, stack, watch):
            unlock(self.context, stack, self.leases)
            with ExitStack() as longer:
                for lease in self.leases:
                    lease.check()
                    longer.enter_context(lease.lasting(ENGINE_TTL))
                yield watch

    def _announce(self, verb: str, watch: OperationWatch) -> Callable[[auto.EngineEvent], None]:
        def on_event(event: auto.EngineEvent) -> None:
            if watch.hear(event) and (text := watch.sentence(verb)):
                self.context.progress.step(text)

        return on_event


def _quiet(_: str) -> None:
    return None


@contextmanager
def _converted_errors(title: str, stack: auto.Stack, watch: OperationWatch | None = None) -> Iterator[None]:
    """Raise the CLI's errors in this block as `EngineFailed`."""
    try:
        yield
    except auto.CommandError as error:
        raise _refusal(title, stack.name, error, watch) from error


def _refusal(title: str, stack: str, error: auto.CommandError, watch: OperationWatch | None = None) -> EngineFailed:
    # An interrupted program leaves a coroutine. Collected during a compile, such as a module's first import, it broke
    # that compile ("AST constructor recursion depth mismatch", CPython 3.11).
    gc.collect()
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line.startswith("* ") or ("error:" in line and not line.endswith("occurred:"))]
    words = " | ".join(dict.fromkeys(telling))[:1500] or str(error)[-800:]
    return EngineFailed(title, stack, watch.failures if watch else (), words)
