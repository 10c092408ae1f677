"""Removes Pulumi's locks of dead engines; never a living holder's.

We hold the lease, so no other driver's engine may run: its leash ends it at latest `leash.BOUND_S` after its lease. A
lock that is left is a dead engine's or that of a person who typed `pulumi up`. On this machine the process tells which.
On another machine, a lock is a driver's only if it dates from before the end of the lease of a driver that left
unclean, since the same clock dates both; all others are a person's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import psutil
from pulumi import automation as auto

from infra.aws.account import every
from infra.engine import leash
from infra.errors import PermanentError
from infra.record.lease import Lease
from infra.session.context import Context
from infra.spec.names import PROJECT

_HAND_WAIT_S = 60.0
"""Wait for a lock that a person took."""
_MARGIN_S = 5.0


def unlock(context: Context, stack: auto.Stack, leases: Sequence[Lease]) -> None:
    """Cancel locks of dead drivers; wait, bounded, for living holders. Raises `PermanentError` naming them."""
    start = leash.now()
    while locks := _locks(context, stack.name):
        reasons = [reason for lock in locks if (reason := _alive(lock, leases))]
        if not reasons:
            context.guard()
            stack.cancel()
            return
        if leash.now() - start > _HAND_WAIT_S + leash.BOUND_S:
            raise PermanentError(
                f"stack {stack.name} is locked",
                seen="; ".join(reasons),
                cure=f"wait for it, or if it is surely gone: `bivouac shell {context.spec.campaign} -- pulumi cancel "
                f"--stack {stack.name}`",
            )
        context.progress.step(f"waiting: {reasons[0]}")
        time.sleep(0.5)


def _locks(context: Context, stack: str) -> list[dict[str, Any]]:
    s3, bucket = context.account.client("s3"), context.buckets.state
    prefix = f".pulumi/locks/organization/{PROJECT}/{stack}/"
    objects = list(every(s3, "list_objects_v2", "Contents", Bucket=bucket, Prefix=prefix))
    bodies = [context.store.get(item["Key"]) for item in objects]
    return [json.loads(body) for body in bodies if body]


def _alive(lock: dict[str, Any], leases: Sequence[Lease]) -> str | None:
    """Return why this lock may not be cancelled yet, None when it may."""
    pid, host = int(lock.get("pid", 0)), str(lock.get("hostname", ""))
    owner = f"{lock.get('username')}@{host} (process {pid})"
    bound = leash.BOUND_S + _MARGIN_S
    age = min((leash.now() - lease.acquired for lease in leases), default=0.0)
    if host == os.uname().nodename:
        if not _same_process(pid, str(lock.get("timestamp", ""))):
            return None
        mark = leash.mark_of(pid)
        if mark is None:
            return f"{owner} works on the stack by hand"
        if age > bound:
            # Its leash must have been killed too.
            leash.end(mark)
            return None
        return f"a dead driver's engine is ending: {owner}"
    ends = [lapse.until for lease in leases for lapse in lease.lapsed if lapse.holder.host == host]
    if any(_taken_by(lock, moment) for moment in ends):
        return None if age > bound else f"a dead driver's engine may be ending: {owner}"
    return f"{owner} holds it, on another machine"


def _taken_by(lock: dict[str, Any], moment: datetime) -> bool:
    """Return whether it was taken by then; False for a lock without a date."""
    try:
        return datetime.fromisoformat(str(lock.get("timestamp", ""))) <= moment
    except (ValueError, TypeError):
        return False


def _same_process(pid: int, locked_at: str) -> bool:
    """Return whether the process that took the lock still lives. A process that began later only reuses the number; one
    that has ended is a zombie while its driver is stopped."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.create_time() <= datetime.fromisoformat(locked_at).timestamp() + 2.0
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, ValueError):
        return True
