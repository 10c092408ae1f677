"""The context of every stage: spec, plan, account, record, lease, progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from lightkube import Client

from infra.aws.account import Account
from infra.cluster.standing.connection import client_of
from infra.console.progress import Progress
from infra.plan.plan import Plan
from infra.record.events import CampaignState, Stage
from infra.record.lease import Lease
from infra.record.payloads.outputs import StageOutput
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec
from infra.spec.names import Buckets, Names

First = TypeVar("First")
Second = TypeVar("Second")


def turns(seconds: float, interval: float = 0.5) -> Iterator[None]:
    """Yield in intervals until the time is up; each turn should report progress.

    The last turn begins after the end: a caller that was delayed for the whole time checks once more.
    """
    end, is_over = time.monotonic() + seconds, False
    while not is_over:
        is_over = time.monotonic() >= end
        yield
        if not is_over:
            time.sleep(interval)


@dataclass
class Context:
    spec: Spec
    plan: Plan
    account: Account
    operator_arn: str
    buckets: Buckets
    store: CampaignStore
    lease: Lease
    progress: Progress
    results: Path
    """Folder on this machine that outlives the campaign: report, certificate, exported files."""
    deadline: datetime
    enters_cluster: bool = True
    """False for the closer, which does without the cluster's own API: neither network nor access entry admits it."""
    identity: str = ""
    """Identity beyond the name; empty if none is recorded: a bake ahead, or a campaign that never began."""
    outputs: dict[Stage, StageOutput] = field(default_factory=dict)
    """Stage -> outputs, for stages that have finished."""
    halt: threading.Event = field(default_factory=threading.Event)
    """Set for the works of `run_both` that are to end: one of them has failed, or the driver was interrupted."""

    @property
    def names(self) -> Names:
        return Names(self.spec.campaign)

    def cluster_client(self) -> Client:
        """Return a client of the campaign's cluster, in its namespace. Raises `UserError`, or what AWS answers."""
        return client_of(self.spec, self.account)

    def guard(self) -> None:
        """Raise `LeaseLost` if this driver no longer drives; call it before every mutation."""
        self.lease.check()

    def state(self) -> CampaignState:
        return self.store.state()

    def turns(self, seconds: float, interval: float = 0.5) -> Iterator[None]:
        """Yield as `turns` does. Raises `KeyboardInterrupt` once the work is to end."""
        for _ in turns(seconds, interval):
            if self.halt.is_set():
                raise KeyboardInterrupt
            yield


def run_both(
    context: Context, first: Callable[[Context], First], second: Callable[[Context], Second]
) -> tuple[First, Second]:
    """Run two works, each on a thread; return both results.

    If one raises, or a signal comes, the other ends at its next turn. Raises the first error once both have ended,
    however often a signal comes: the lease and the files that they use are the caller's.
    """
    own = replace(context, halt=threading.Event())
    pool = ThreadPoolExecutor(2, "side-by-side")
    try:
        left, right = pool.submit(first, own), pool.submit(second, own)
        for work in as_completed((left, right)):
            work.result()
        return left.result(), right.result()
    except BaseException:
        context.progress.step("it ends: what was begun beside it stops first")
        raise
    finally:
        _halt(own, pool)


def _halt(context: Context, pool: ThreadPoolExecutor) -> None:
    while True:
        with suppress(BaseException):  # a signal's alone: the works keep their own errors
            context.halt.set()
            pool.shutdown()
            return
