"""What the steward decides on: failures and what follows from each, what was seen, what was tried. Pure values."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from infra.cluster.fitness import Sickness
from trainer.contract import ExitCode, Phase


class FailureClass(StrEnum):
    """Why an attempt ended; what follows from each stands in `CONSEQUENCE`."""

    USER = "user"
    DATA = "data"
    PROCESS = "process"
    NODE = "node"
    STORAGE = "storage"
    HANG = "hang"
    NUMERIC = "numeric"
    INTERRUPTED = "interrupted"
    STARTUP = "startup"


class Consequence(StrEnum):
    HOLD = "hold"
    RESTART = "restart"
    REPLACE = "replace"


CONSEQUENCE: dict[FailureClass, Consequence] = {
    FailureClass.USER: Consequence.HOLD,
    FailureClass.DATA: Consequence.HOLD,
    FailureClass.NUMERIC: Consequence.HOLD,
    FailureClass.PROCESS: Consequence.RESTART,
    FailureClass.STORAGE: Consequence.RESTART,
    FailureClass.HANG: Consequence.RESTART,
    FailureClass.STARTUP: Consequence.RESTART,
    FailureClass.INTERRUPTED: Consequence.RESTART,
    FailureClass.NODE: Consequence.REPLACE,
}
"""Numeric failures hold until rolling back with skipped data exists: repeating them would only repeat them."""

BY_EXIT: dict[int, FailureClass] = {
    ExitCode.USER: FailureClass.USER,
    ExitCode.DATA: FailureClass.DATA,
    ExitCode.INTERNAL: FailureClass.PROCESS,
    ExitCode.STORAGE: FailureClass.STORAGE,
    ExitCode.INTERRUPTED: FailureClass.INTERRUPTED,
    ExitCode.NUMERIC: FailureClass.NUMERIC,
}
WORST_FIRST = (
    FailureClass.USER,
    FailureClass.DATA,
    FailureClass.NUMERIC,
    FailureClass.NODE,
    FailureClass.STORAGE,
    FailureClass.HANG,
    FailureClass.INTERRUPTED,
    FailureClass.STARTUP,
    FailureClass.PROCESS,
)


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


Source = Literal["record", "cluster", "AWS", "acts"]
"""What the steward depends on: S3, where record and lease lie; Kubernetes; EC2 and EKS; and its own acts, of which one
that broke off is begun anew."""


class Unseen(Frozen):
    """A source that does not answer."""

    source: Source
    lasts: timedelta
    why: str

    def __str__(self) -> str:
        what = "what is due cannot be done" if self.source == "acts" else f"the {self.source} cannot be reached"
        return f"{what} for {timedelta(seconds=int(self.lasts.total_seconds()))}: {self.why}"


class Policy(Frozen):
    """Limits, from the spec's `recovery` and `money` and from the plan."""

    attempts_without_progress: int
    process_restarts: int
    """Within `LIMITS_WINDOW`, as `node_replacements`."""
    node_replacements: int
    repairs_per_hour: int
    heartbeat_timeout: timedelta
    hang_timeout: timedelta
    startup_timeout: timedelta
    capacity_timeout: timedelta
    blind_timeout: timedelta = timedelta(hours=1)
    """Without a record that can be written, or with an end due and a cluster that cannot be reached: after so long the
    gang commits and the GPU nodes go back, unrecorded, rather than bill until the deadline."""
    means_patience: timedelta = timedelta(minutes=5)
    """The same where money or time are over: so long a recorded end is waited for."""
    undone_timeout: timedelta = timedelta(minutes=20)
    """For what is due between attempts and is refused again and again, such as a launch."""
    budget_usd: Decimal
    on_stop: Literal["hold", "teardown"] = "teardown"
    hold_for: timedelta = timedelta(minutes=60)
    archive: timedelta = timedelta()
    """The archive alone: what deadline and budget must still cover at a hold's end."""
    interval_and_archive: timedelta
    """One checkpoint interval plus the archive: with less time or money left there is nothing to gain."""


class PodView(Frozen):
    """One pod of the gang, as seen from outside."""

    index: int
    name: str
    node: str | None
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Missing"]
    exit_code: int | None = None
    reason: str = ""
    """Of the termination message; empty when there was none."""
    detail: str = ""
    ended_at: datetime | None = None
    """When its container ended, by its node's clock."""
    silent_for: timedelta | None = None
    """Since the last good answer of `/status`; None before the first."""
    running_for: timedelta | None = None
    waits: str = ""
    """Why it has not been started, in words; empty once it was."""
    trainer_phase: Phase | None = None
    step: int = 0
    committed_step: int = -1


class NodeView(Frozen):
    name: str
    instance: str | None
    ready: bool | None
    """The Node's Ready condition; None when it is Unknown."""
    instance_state: Literal["running", "impaired", "gone", "unknown"] = "unknown"
    quarantined: bool = False
    unfit: str = ""
    """Why no pod of the gang can run there, in words; empty when none is known."""
    suspected: bool = False
    """Whether it is unfit by the monitoring agent's word alone: pods can run there."""
    sick_for: dict[Sickness, timedelta] = {}
    """How long it has had what only another node helps against."""

    @property
    def fit(self) -> bool:
        here = self.ready is True and not self.quarantined and self.instance_state in ("running", "unknown")
        return here and not self.unfit


class Observation(Frozen):
    now: datetime
    deadline: datetime
    spent_usd: Decimal
    usd_per_hour: Decimal
    attempt: int
    """The attempt in flight or the newest ended one; 0 before the first."""
    in_flight: bool
    pods: tuple[PodView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    nodes_wanted: int = 0
    since_launch: timedelta = timedelta()
    since_step: timedelta = timedelta()
    """Since the gang's slowest step last rose, or since launch."""
    step: int = 0
    """The highest that the gang's slowest step was seen at, by whichever steward."""
    since_short: timedelta | None = None
    """How long there have been fewer fit nodes than wanted; None when there are enough."""
    committed_step: int = -1
    """Newest checkpoint committed on a tier that outlives a node, over all attempts."""
    stop_requested: bool = False
    unseen: tuple[Unseen, ...] = ()
    """Sources that do not answer: of them all else here is as it was last seen."""
    given_back: str = ""
    """Why the GPU nodes were given back without a word in the record; empty where they were not."""
    troubles: tuple[str, ...] = ()
    """What could not be done or seen, in words for people: it is tried again at each turn."""
    held_since: datetime | None = None
    """When the hold in force began; None while none is."""

    def lasts(self, source: Source) -> timedelta | None:
        """How long a source has not answered; None while it does."""
        return next((one.lasts for one in self.unseen if one.source == source), None)


class Attempt(Frozen):
    """An attempt that has ended."""

    number: int
    failure: FailureClass
    ended_at: datetime
    committed_at_launch: int
    committed_at_end: int
    dead_nodes: tuple[str, ...] = ()
    first_failed: str | None = None
    """The node on which it failed first, where one pod's own failure came before all others."""
    instances: dict[str, str] = {}
    """Of those nodes, as far as known: a later node of the same name is another."""

    def blames(self, node: NodeView) -> bool:
        return node.name == self.first_failed and self._is(node)

    def buries(self, node: NodeView) -> bool:
        return node.name in self.dead_nodes and self._is(node)

    def _is(self, node: NodeView) -> bool:
        return self.instances.get(node.name, node.instance) == node.instance

    @property
    def progressed(self) -> bool:
        return self.committed_at_end > self.committed_at_launch


class History(Frozen):
    attempts: tuple[Attempt, ...] = ()
    repairs: tuple[datetime, ...] = ()

    def without_progress(self) -> int:
        """Attempts at the end of the history that committed nothing new."""
        count = 0
        for attempt in reversed(self.attempts):
            if attempt.progressed:
                break
            count += 1
        return count

    def count(self, since: datetime, *failures: FailureClass) -> int:
        """Attempts that one of these ended after `since`."""
        return sum(attempt.failure in failures and attempt.ended_at > since for attempt in self.attempts)
