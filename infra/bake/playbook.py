"""Runs playbooks/bake.yml on a builder by ansible-runner: progress per role, Ansible's message on failure."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from infra.bake.builder import TRANSFER, Builder
from infra.engine.command import on_leash
from infra.errors import PermanentError
from infra.folders import asset
from infra.session.context import Context

PLAYBOOKS = asset("playbooks")
BAKED = re.compile(r"(node|trainer)_image_baked")
"""The last fact of a bake: the image's content."""
COMMAND_S = 3600
"""Bound of one task; downloads have their own."""


@dataclass
class PlayResult:
    """Result of a run, from its events."""

    baked: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    changed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """By role."""


def play(context: Context, builder: Builder, group: str, variables: dict[str, Any], work: Path) -> dict[str, Any]:
    """Play the part of bake.yml for `group`; return its last fact. `work` is an empty folder."""
    hosts = inventory(context, builder, group)
    with on_leash([context.lease], context.spec.campaign) as mark:
        say = partial(_say, context, group.replace("_", " "))
        result = run(PLAYBOOKS / "bake.yml", hosts, variables, work, say, mark, context.halt.is_set)
    context.guard()
    if result.failure is not None or not result.baked:
        raise PermanentError(
            "the bake failed",
            seen=result.failure or "it ended without reporting the image's content",
            cure="mend what the message names; the same command bakes again, on a new builder",
        )
    slow = sorted(result.seconds.items(), key=lambda row: -row[1])
    context.progress.note(", ".join(f"{role} {seconds:.1f} s" for role, seconds in slow))
    return result.baked


def _say(context: Context, image: str, text: str) -> None:
    context.progress.step(f"{image}: {text}")


def inventory(context: Context, builder: Builder, group: str) -> dict[str, Any]:
    """Return an inventory with the builder in the group of the image that it bakes."""
    host = {
        "ansible_connection": "ssm_command",
        "ansible_python_interpreter": "python3",
        "ansible_remote_tmp": "/var/tmp/ansible",
        "ssm_instance": builder.id,
        "ssm_region": context.spec.region,
        "ssm_bucket": context.buckets.state,
        "ssm_prefix": f"{context.store.prefix}/{TRANSFER}",
        "ssm_timeout": COMMAND_S,
    }
    return {"all": {"children": {group: {"hosts": {"builder": host}}}}}


def run(
    playbook: Path,
    inventory: dict[str, Any],
    variables: dict[str, Any],
    work: Path,
    say: Any = lambda text: None,
    environment: Mapping[str, str] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> PlayResult:
    """Run ansible-runner. Raises `KeyboardInterrupt` when `is_over` ended it."""
    import ansible_runner

    report, clock = PlayResult(), [time.monotonic()]

    def on_event(event: dict[str, Any]) -> bool:
        _hear(event, report, clock, say)
        return False

    private = work / "runner"
    private.mkdir(parents=True, exist_ok=True)
    result = ansible_runner.run(
        private_data_dir=str(private),
        playbook=str(playbook),
        quiet=True,
        envvars=_environment(work) | dict(environment or {}),
        inventory=inventory,
        extravars=variables,
        event_handler=on_event,
        cancel_callback=is_over,
    )
    if result.status == "canceled":
        raise KeyboardInterrupt
    if result.status != "successful" and report.failure is None:
        report.failure = f"ansible-playbook {result.status}: {result.stdout.read()[-600:]}"
    return report


def _hear(event: dict[str, Any], report: PlayResult, clock: list[float], say: Any) -> None:
    data = event.get("event_data", {})
    match event["event"]:
        case "playbook_on_task_start":
            role = data.get("role")
            say(f"{role + ': ' if role else ''}{data.get('task')}")
        case "runner_on_ok":
            now = time.monotonic()
            role = str(data.get("role") or "play")
            report.seconds[role] = report.seconds.get(role, 0.0) + now - clock[0]
            clock[0] = now
            report.changed += bool(data.get("res", {}).get("changed"))
            for name, value in data.get("res", {}).get("ansible_facts", {}).items():
                if BAKED.fullmatch(name):
                    report.baked = value
        case "runner_on_failed" if not data.get("ignore_errors"):
            report.failure = _words(data)
        case "runner_on_unreachable":
            report.failure = f"the builder cannot be reached: {data.get('res', {}).get('msg', '')}"[:800]


def _words(data: dict[str, Any]) -> str:
    """Return role, task and the module's message, in a loop those of its first item that failed; for a command also the
    end of its output."""
    result = data.get("res", {})
    failed_items = [item for item in result.get("results", ()) if item.get("failed")]
    result = failed_items[0] if failed_items else result
    parts = [str(result.get(key, "")).strip()[-600:] for key in ("url", "msg", "stderr", "module_stderr")]
    role = f"role {data['role']}, " if data.get("role") else ""
    label = f" for {result['_ansible_item_label']}" if failed_items and "_ansible_item_label" in result else ""
    return f"{role}task {data.get('task')!r}{label}: {' '.join(part for part in parts if part)}"[:1200]


def _environment(work: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_CONNECTION_PLUGINS": str(PLAYBOOKS / "plugins/connection"),
        "ANSIBLE_ROLES_PATH": str(PLAYBOOKS / "roles"),
        "ANSIBLE_LIBRARY": str(PLAYBOOKS / "library"),
        "ANSIBLE_HOME": str(work / "ansible"),
        "ANSIBLE_LOCAL_TEMP": str(work / "tmp"),
        "ANSIBLE_REMOTE_TEMP": "/var/tmp/ansible",
        "ANSIBLE_PIPELINING": "true",
        # Our fact shadows nothing, and the unused half of the playbook is no news.
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
    }
