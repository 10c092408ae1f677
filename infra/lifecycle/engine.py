"""The real Pulumi engine through its Automation API: inline programs, state in the campaign's own S3 backend."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pulumi import automation as auto

from infra.errors import PermanentError
from infra.lifecycle.context import Context
from infra.lifecycle.failures import EngineFailed, Watch
from infra.lifecycle.refusal import refuse_loss
from infra.names import PROJECT
from infra.program import program

_LOCK_WAIT_S = 60.0
PASSPHRASE = "PULUMI_CONFIG_PASSPHRASE"


class Engine:
    """Stacks of one account; every operation announces each resource as the engine handles it."""

    def __init__(self, context: Context, work: Path) -> None:
        self.context = context
        self.backend = f"s3://{context.buckets.state}?region={context.account.region}&awssdk=v2"
        self.work = work
        self.watch = Watch()
        """Of the operation that runs, or of the last one."""

    def stack(self, name: str, config: Mapping[str, str]) -> auto.Stack:
        self.work.mkdir(parents=True, exist_ok=True)
        options = auto.LocalWorkspaceOptions(
            work_dir=str(self.work),
            project_settings=auto.ProjectSettings(
                name=PROJECT, runtime="python", backend=auto.ProjectBackend(url=self.backend)
            ),
            # Nothing secret is in the state; who wants encryption sets a passphrase of their own.
            env_vars={PASSPHRASE: os.environ.get(PASSPHRASE, "")},
        )
        try:
            stack = auto.create_or_select_stack(name, project_name=PROJECT, program=program, opts=options)
            stack.set_all_config({key: auto.ConfigValue(value) for key, value in config.items()})
        except FileNotFoundError as error:
            raise PermanentError("there is no Pulumi engine", seen=error, cure="see `bivouac doctor`") from error
        except auto.CommandError as error:
            raise _refusal("opening", name, error) from error
        return stack

    def up(self, stack: auto.Stack) -> dict[str, Any]:
        """Bring the stack up; what a killed run left pending is resolved first. Returns the outputs."""
        self._unlock(stack)
        self.context.guard()
        refuse_loss(self.context, stack)
        watch = Watch()
        try:
            refresh = self._has_pending(stack)
            result = stack.up(on_event=self._announce("creating", watch), on_output=_quiet, refresh=refresh)
        except auto.CommandError as error:
            raise _refusal("pulumi up", stack.name, error, watch) from error
        return {name: output.value for name, output in result.outputs.items()}

    def destroy(self, stack: auto.Stack) -> None:
        """Destroy the stack and forget it. Raises `EngineFailed`; all that does not depend on what failed is gone."""
        self._unlock(stack)
        self.context.guard()
        watch = self.watch = Watch()
        try:
            if self._has_pending(stack):
                looking = self._announce("looking at", watch)
                stack.refresh(on_event=looking, on_output=_quiet, clear_pending_creates=True)
                watch = self.watch = Watch()
            # What can go goes, though something else stays: each hour of it bills.
            destroying = self._announce("destroying", watch)
            stack.destroy(on_event=destroying, on_output=_quiet, continue_on_error=True)
            stack.workspace.remove_stack(stack.name)
        except auto.CommandError as error:
            raise _refusal("pulumi destroy", stack.name, error, watch) from error

    def clear_broken(self, stack: auto.Stack) -> tuple[str, ...]:
        """Destroy what an earlier `up` made but could not bring to life, and what hangs on it; their types and names.

        The engine holds such a resource as made and would only update it: with nothing to change, a failed add-on or
        node group would pass for a good one. Only for stacks that carry no training yet.
        """
        resources = (stack.export_stack().deployment or {}).get("resources", [])
        broken = {one["urn"]: f"{one['type'].rpartition(':')[2]} {one['urn'].rpartition('::')[2]}"
                  for one in resources if one.get("initErrors")}  # fmt: skip
        if not broken:
            return ()
        self._unlock(stack)
        self.context.guard()
        watch = self.watch = Watch()
        try:
            clearing = self._announce("clearing", watch)
            stack.destroy(on_event=clearing, on_output=_quiet, target=list(broken), target_dependents=True)
        except auto.CommandError as error:
            raise _refusal("clearing what failed", stack.name, error, watch) from error
        return tuple(broken.values())

    def refresh(self, stack: auto.Stack) -> None:
        """Take AWS's word for what the stack holds. Raises `EngineFailed`."""
        self._unlock(stack)
        self.context.guard()
        watch = self.watch = Watch()
        try:
            stack.refresh(on_event=self._announce("looking at", watch), on_output=_quiet)
        except auto.CommandError as error:
            raise _refusal("pulumi refresh", stack.name, error, watch) from error

    def resources(self, stack: auto.Stack) -> int:
        return len((stack.export_stack().deployment or {}).get("resources", []))

    def _has_pending(self, stack: auto.Stack) -> bool:
        return bool((stack.export_stack().deployment or {}).get("pending_operations"))

    def _unlock(self, stack: auto.Stack) -> None:
        """Cancel a lock that a dead driver left: we hold the driver's lease, so no living driver owns it.

        Its engine may outlive a killed driver for a moment: as long as that process lives here, it is waited for.
        """
        s3 = self.context.account.client("s3")
        prefix = f".pulumi/locks/organization/{PROJECT}/{stack.name}/"
        until = time.monotonic() + _LOCK_WAIT_S
        while True:
            found = s3.list_objects_v2(Bucket=self.context.buckets.state, Prefix=prefix).get("Contents", [])
            if not found:
                return
            locks = [self.context.store.get(item["Key"]) for item in found]
            living = [lock for lock in locks if lock and _lives_here(json.loads(lock))]
            if not living:
                break
            if time.monotonic() > until:
                raise PermanentError(
                    f"stack {stack.name} is locked by a living engine",
                    seen=living[0].decode()[:200],
                    cure="wait for it, or end that process",
                )
            self.context.progress.step("waiting for the engine of a killed driver to end")
            time.sleep(0.5)
        self.context.guard()
        stack.cancel()

    def _announce(self, verb: str, watch: Watch) -> Callable[[auto.EngineEvent], None]:
        def on_event(event: auto.EngineEvent) -> None:
            if watch.hear(event) and (said := watch.sentence(verb)):
                self.context.progress.step(said)

        return on_event


def _quiet(_: str) -> None:
    return None


def _lives_here(lock: Mapping[str, Any]) -> bool:
    """Whether the process that took this lock still runs on this machine."""
    if lock.get("hostname") != os.uname().nodename:
        return False
    return Path(f"/proc/{lock.get('pid')}").exists()


def _refusal(what: str, stack: str, error: auto.CommandError, watch: Watch | None = None) -> EngineFailed:
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line.startswith("* ") or ("error:" in line and not line.endswith("occurred:"))]
    words = " | ".join(dict.fromkeys(telling))[:1500] or str(error)[-800:]
    return EngineFailed(what, stack, watch.failures if watch else (), words)
