"""Pulumi's locks: which may be cancelled. A living holder's never; that of an engine whose lease has lapsed, always.

We hold the lease, so no other driver's engine may run; each is ended by its leash at latest `leash.BOUND_S` after its
own lease. What is left is a lock whose engine is gone, or one that a person took by typing `pulumi up`. On this machine
the process tells which. On another machine only a lock taken there while a driver that left unclean had its time is
that driver's: an engine starts under its lease, and the same clock dates the lock and the end of that time. What was
locked there later, or where no driver left unclean, is a person's.
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
"""For a lock that a person took."""
_MARGIN_S = 5.0


def unlock(context: Context, stack: auto.Stack, leases: Sequence[Lease]) -> None:
    """Cancel what dead drivers left locked; wait, bounded, for what lives. Raises `PermanentError` naming who does."""
    begun = leash.now()
    while held := _locks(context, stack.name):
        why = [reason for lock in held if (reason := _alive(lock, leases))]
        if not why:
            context.guard()
            stack.cancel()
            return
        if leash.now() - begun > _HAND_WAIT_S + leash.BOUND_S:
            raise PermanentError(
                f"stack {stack.name} is locked",
                seen="; ".join(why),
                cure=f"wait for it, or if it is surely gone: `bivouac shell {context.spec.campaign} -- pulumi cancel "
                f"--stack {stack.name}`",
            )
        context.progress.step(f"waiting: {why[0]}")
        time.sleep(0.5)


def _locks(context: Context, stack: str) -> list[dict[str, Any]]:
    s3, bucket = context.account.client("s3"), context.buckets.state
    prefix = f".pulumi/locks/organization/{PROJECT}/{stack}/"
    found = list(every(s3, "list_objects_v2", "Contents", Bucket=bucket, Prefix=prefix))
    bodies = [context.store.get(item["Key"]) for item in found]
    return [json.loads(body) for body in bodies if body]


def _alive(lock: dict[str, Any], leases: Sequence[Lease]) -> str | None:
    """Why this lock may not be cancelled yet, None when it may."""
    pid, host = int(lock.get("pid", 0)), str(lock.get("hostname", ""))
    who = f"{lock.get('username')}@{host} (process {pid})"
    bound = leash.BOUND_S + _MARGIN_S
    waited = min((leash.now() - lease.acquired for lease in leases), default=0.0)
    if host == os.uname().nodename:
        if not _same_process(pid, str(lock.get("timestamp", ""))):
            return None
        mark = leash.mark_of(pid)
        if mark is None:
            return f"{who} works on the stack by hand"
        if waited > bound:
            # Its leash was killed too, or it would be gone.
            leash.end(mark)
            return None
        return f"the engine of a driver that is gone is ending: {who}"
    ends = [one.until for lease in leases for one in lease.lapsed if one.holder.host == host]
    if any(_taken_by(lock, until) for until in ends):
        return None if waited > bound else f"the engine of a driver that is gone may be ending: {who}"
    return f"{who} holds it, on another machine"


def _taken_by(lock: dict[str, Any], until: datetime) -> bool:
    """Whether it was taken at that moment or before; a lock without a date was not."""
    try:
        return datetime.fromisoformat(str(lock.get("timestamp", ""))) <= until
    except (ValueError, TypeError):
        return False


def _same_process(pid: int, locked_at: str) -> bool:
    """Whether the process that took the lock still lives.

    One that began later only has its number; one that has ended stays a zombie while its driver is stopped.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.create_time() <= datetime.fromisoformat(locked_at).timestamp() + 2.0
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, ValueError):
        return True
