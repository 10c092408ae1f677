"""The values that the steward decides on: failure classes and their consequences, observations, limits, history."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from infra.cluster.cloud_notice import CloudNotice
from infra.cluster.fitness import Sickness
from trainer.contract import ExitCode, Phase, Unrecognised
from trainer.contract.culprit import RankSeen
from trainer.contract.frozen import Frozen


class FailureClass(StrEnum):
    """Causes of an attempt's end; `CONSEQUENCE` has what follows."""

    USER = "user"
    DATA = "data"
    PROCESS = "process"
    NODE = "node"
    STORAGE = "storage"
    HANG = "hang"
    NUMERIC = "numeric"
    INTERRUPTED = "interrupted"
    STARTUP = "startup"
    QUEUE = "queue"


class Consequence(StrEnum):
    HOLD = "hold"
    RESTART = "restart"
    REPLACE = "replace"


CONSEQUENCE: dict[FailureClass, Consequence] = {
    FailureClass.USER: Consequence.HOLD,
    FailureClass.DATA: Consequence.HOLD,
    FailureClass.NUMERIC: Consequence.HOLD,
    FailureClass.QUEUE: Consequence.HOLD,
    FailureClass.PROCESS: Consequence.RESTART,
    FailureClass.STORAGE: Consequence.RESTART,
    FailureClass.HANG: Consequence.RESTART,
    FailureClass.STARTUP: Consequence.RESTART,
    FailureClass.INTERRUPTED: Consequence.RESTART,
    FailureClass.NODE: Consequence.REPLACE,
}
"""Numeric failures hold: a retry repeats them, and rolling back with skipped data does not exist yet. A gang that its
queue has stopped holds: somebody, or a limit of Kueue, does not want it there again."""

BY_EXIT: dict[int, FailureClass] = {
    ExitCode.USER: FailureClass.USER,
    ExitCode.DATA: FailureClass.DATA,
    ExitCode.INTERNAL: FailureClass.PROCESS,
    ExitCode.STORAGE: FailureClass.STORAGE,
    ExitCode.INTERRUPTED: FailureClass.INTERRUPTED,
    ExitCode.NUMERIC: FailureClass.NUMERIC,
    ExitCode.SICK: FailureClass.NODE,
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
    FailureClass.QUEUE,
)


Source = Literal["record", "cluster", "AWS", "queue", "acts"]
"""The steward's dependencies: S3 with record and lease; Kubernetes; EC2 and EKS; Kueue; its own acts, which start again
after an error."""


class Unseen(Frozen, extra="ignore"):
    """A source that does not answer."""

    source: Source
    lasts: timedelta
    why: str

    def __str__(self) -> str:
        trouble = "what is due cannot be done" if self.source == "acts" else f"the {self.source} cannot be reached"
        return f"{trouble} for {timedelta(seconds=int(self.lasts.total_seconds()))}: {self.why}"


class Policy(Frozen, extra="ignore"):
    """Limits from the spec's `recovery` and `money` and from the plan."""

    attempts_without_progress: int
    process_restarts: int
    """Within `LIMITS_WINDOW`, like `node_replacements`."""
    node_replacements: int
    repairs_per_hour: int
    reboots: bool = False
    """Nodes may be rebooted, which only the campaign's own may."""
    replaces: bool = True
    """False: decide as if no node had to be replaced."""
    heartbeat_timeout: timedelta
    hang_timeout: timedelta
    save_timeout: timedelta | None = None
    """Time without a finished step while the gang saves, evaluates or finishes; None: twice `hang_timeout`."""
    startup_timeout: timedelta
    capacity_timeout: timedelta
    gang_sizes: tuple[int, ...] = ()
    """Numbers of nodes, fewer than all, with which the gang may train; the largest first."""
    spare_timeout: timedelta = timedelta(minutes=10)
    """Longest wait for a lost node's successor, if the gang may train with fewer."""
    blind_timeout: timedelta = timedelta(hours=1)
    """Time after which the gang commits and the GPU nodes are given back unrecorded, rather than bill until the
    deadline: the record cannot be written, or an end is due and the cluster cannot be reached."""
    means_patience: timedelta = timedelta(minutes=5)
    """The same when money or time is over: the longest wait for an end that can be recorded."""
    undone_timeout: timedelta = timedelta(minutes=20)
    """Longest series of refusals of an act between attempts, such as a launch."""
    budget_usd: Decimal
    on_stop: Literal["hold", "teardown"] = "teardown"
    hold_for: timedelta = timedelta(minutes=60)
    archive: timedelta = timedelta()
    """Duration of the archive, which deadline and budget must still cover at a hold's end."""
    interval_and_archive: timedelta
    """One checkpoint interval and the archive: with less time or money left, more training gains nothing."""


class PodView(Frozen, extra="ignore"):
    """One pod of the gang, seen from outside."""

    index: int
    name: str
    node: str | None
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Missing"]
    exit_code: int | None = None
    reason: str = ""
    """Reason in the termination message; empty when there was none."""
    detail: str = ""
    words: str = ""
    """The termination message's own words, without the reason."""
    failed_rank: int | None = None
    """The rank that failed first, by the termination message."""
    ended_at: datetime | None = None
    """End of its container, by its node's clock."""
    silent_for: timedelta | None = None
    """Time since the last good answer of `/status`; None before the first."""
    running_for: timedelta | None = None
    waits: str = ""
    """Reason why it has not started; empty once it has."""
    node_rank: int | None = None
    """Its node's place in the order of ranks, by its agent's word; None before the first."""
    trainer_phase: Phase | None = None
    step: int = 0
    committed_step: int = -1
    ranks: tuple[RankSeen, ...] = ()
    """What its node knows of its ranks: by the termination message, before its end by `/status`."""
    unrecognised: Unrecognised | None = None
    """What its node sees in the job's folder that is no known checkpoint."""


REBALANCE = "EC2 recommends to rebalance: this spot node may be taken soon"
"""A decline that is no fault of the node."""


class NodeView(Frozen, extra="ignore"):
    name: str
    instance: str | None
    ready: bool | None
    """The Node's Ready condition; None when it is Unknown."""
    instance_state: Literal["running", "impaired", "gone", "unknown"] = "unknown"
    quarantined: bool = False
    unfit: str = ""
    """Reason why no pod of the gang can run there; empty when none is known."""
    suspected: bool = False
    """Unfit only according to the monitoring agent: pods can run there."""
    sick_for: dict[Sickness, timedelta] = {}
    """Duration of each sickness that only a replacement cures."""
    cloud_notice: CloudNotice | None = None
    """What EC2 announces for its instance; None if nothing is known."""

    reboot_cures: bool = False
    """A reboot may cure all that ails it."""
    decline: str = ""
    """Why it is about to fail, by the trend of its readings; empty if nothing tells."""

    @property
    def fit(self) -> bool:
        is_usable = self.ready is True and not self.quarantined and self.instance_state in ("running", "unknown")
        return is_usable and not self.unfit


class Observation(Frozen, extra="ignore"):
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
    """Nodes of the whole gang, by the spec."""
    gang_nodes: int = 0
    """Nodes of the attempt in flight; 0: all that are wanted."""
    room_step: int | None = None
    """Newest committed step when fit nodes began to suffice for a larger gang than that in flight; None: they do
    not."""
    since_launch: timedelta = timedelta()
    since_step: timedelta = timedelta()
    """Time since the gang's slowest step last rose, or since launch."""
    step: int = 0
    """The highest value of the gang's slowest step, over all stewards."""
    since_failed: timedelta | None = None
    """Time since the first pod of the attempt was seen failed; None before."""
    since_short: timedelta | None = None
    """Time since which fewer nodes are fit than wanted, or than the gang in flight has; None when enough are."""
    committed_step: int = -1
    """Newest checkpoint committed on a tier that outlives a node, over all attempts."""
    queued: str = ""
    """Why the gang's queue keeps its pods from starting; empty without a queue, and once they may start."""
    stopped_for: timedelta | None = None
    """Time for which the queue has said that it will not start the gang by itself; None while it may."""
    vanished: str = ""
    """That the job of a gang in a queue is gone, and not by us; empty otherwise."""
    stop_requested: bool = False
    unseen: tuple[Unseen, ...] = ()
    """Sources that do not answer; the fields that come from them are as last seen."""
    given_back: str = ""
    """Reason for which the GPU nodes were given back unrecorded; empty when they were not."""
    troubles: tuple[str, ...] = ()
    """Calls and looks that failed, for people; each turn tries them again."""
    held_since: datetime | None = None
    """Begin of the current hold; None without one."""
    notice_steps: dict[str, int] = {}
    """Instance -> newest committed step when the cloud's notice for it was recorded."""

    @property
    def pods_wanted(self) -> int:
        """Return the number of pods of the attempt in flight."""
        return self.gang_nodes or self.nodes_wanted

    def lasts(self, source: Source) -> timedelta | None:
        """Return how long a source has not answered; None while it does."""
        return next((outage.lasts for outage in self.unseen if outage.source == source), None)


class Attempt(Frozen, extra="ignore"):
    """An attempt that has ended."""

    number: int
    failure: FailureClass
    ended_at: datetime
    committed_at_launch: int
    committed_at_end: int
    dead_nodes: tuple[str, ...] = ()
    sick_nodes: tuple[str, ...] = ()
    """Those of them that answered, and computed wrongly."""
    first_failed: str | None = None
    """The node of the one pod whose own failure came before all others; None without such a pod."""
    nodes: int = 0
    """Its nodes; 0: all of the spec's."""
    grows_to: int = 0
    """It was ended to go on with so many nodes; 0: it was not."""
    instances: dict[str, str] = {}
    """Instances of those nodes, if known: a later node of the same name is another one."""

    def blames(self, node: NodeView) -> bool:
        return node.name == self.first_failed and self._is(node)

    def buries(self, node: NodeView) -> bool:
        return node.name in self.dead_nodes and self._is(node)

    def _is(self, node: NodeView) -> bool:
        return self.instances.get(node.name, node.instance) == node.instance

    @property
    def progressed(self) -> bool:
        return self.committed_at_end > self.committed_at_launch


class History(Frozen, extra="ignore"):
    attempts: tuple[Attempt, ...] = ()
    repairs: tuple[datetime, ...] = ()
    reboots: dict[str, datetime] = {}
    """Instance that was rebooted -> until when its node is waited for."""

    def settled_nodes(self, view: Observation) -> list[NodeView]:
        """Return the nodes without those that reboot and are waited for."""
        return [node for node in view.nodes if view.now >= self.reboots.get(node.instance or "", view.now)]

    def without_progress(self) -> int:
        """Return the number of attempts since the last one that committed something new."""
        count = 0
        for attempt in reversed(self.attempts):
            if attempt.progressed:
                break
            count += 1
        return count

    def count(self, start: datetime, *failures: FailureClass) -> int:
        """Return the number of attempts that ended after `start` with one of `failures`, and not to grow."""
        failures_since = [attempt for attempt in self.attempts if attempt.ended_at > start and not attempt.grows_to]
        return sum(attempt.failure in failures for attempt in failures_since)
