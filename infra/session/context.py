"""The context of every stage: spec, plan, account, record, lease, progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

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
Result = TypeVar("Result")
_LOOK_S = 0.05


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
class Halt:
    """A flag without a lock, which a signal in the middle would leave taken."""

    flag: bool = False

    def set(self) -> None:
        self.flag = True

    def is_set(self) -> bool:
        return self.flag


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
    halt: Halt = field(default_factory=Halt)
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
    own = replace(context, halt=Halt())
    left, right = _Work(own, first), _Work(own, second)
    works: tuple[_Work[Any], ...] = (left, right)
    try:
        for work in works:
            work.start()
        while not all(work.is_over for work in works) and not any(work.errors for work in works):
            time.sleep(_LOOK_S)
        for error in [error for work in works for error in work.errors]:
            raise error
        return left.results[0], right.results[0]
    except BaseException:
        context.progress.step("it ends: what was begun beside it stops first")
        raise
    finally:
        _halt(own, works)


class _Work(threading.Thread, Generic[Result]):
    """A work of `run_both`. Its state is read without a lock: a signal that interrupts whoever takes one leaves it
    taken, and one that interrupts a thread's join lets CPython 3.11 take the thread for ended."""

    def __init__(self, context: Context, act: Callable[[Context], Result]) -> None:
        super().__init__(name="run-both")
        self._context, self._act = context, act
        self.has_begun = self.is_over = False
        self.results, self.errors = list[Result](), list[BaseException]()

    def run(self) -> None:
        self.has_begun = True
        try:
            if not self._context.halt.is_set():
                self.results.append(self._act(self._context))
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.is_over = True


def _halt(context: Context, works: Sequence[_Work[Any]]) -> None:
    """Wait until no work runs: one that has not begun by now never does. A signal ends no wait."""
    while True:
        with suppress(BaseException):  # a signal's alone: the works keep their own errors
            context.halt.set()
            while any(work.has_begun and not work.is_over for work in works):
                time.sleep(_LOOK_S)
            return
