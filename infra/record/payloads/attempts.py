"""Nodes, the pilot, and the attempts that train."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, FiniteFloat

from infra.console.words import plural
from infra.record.payloads.base import Count, Payload, PrintedPayload, Text, Whole
from infra.spec.notify import Change
from trainer.contract.frozen import Frozen


def short(node: object) -> str:
    """Return a node's name without its domain."""
    return str(node).split(".", 1)[0]


class NodeVerdict(Payload, kind="node.verdict"):
    node: str
    instance: str | None = None
    fit: bool = True
    probes: tuple[dict[str, Any], ...] = ()
    hardware: tuple[str, ...] = ()
    """UUIDs of its GPUs."""

    def sentence(self) -> str:
        return f"{short(self.node)} ({self.instance}) is {'fit' if self.fit else 'unfit'}"


class NodeQuarantined(Payload, kind="node.quarantined", notice=Change.NODE, watched=True):
    node: str
    instance: str | None = None
    reason: str | None = None
    others: tuple[str, ...] = ()
    """Nodes of the same decision, whose events follow."""
    first_node: str | None = None
    """First node of the same decision: people are told of this one by its event."""
    died: bool = False
    """It was dead: a borrowed one is the campaign's again once it is back."""

    def sentence(self) -> str:
        addition = f"; with it {', '.join(map(short, self.others))}" if self.others else ""
        return f"{short(self.node)} ({self.instance}) quarantined: {self.reason}{addition}"


class NodeAnnounced(Payload, kind="node.announced", notice=Change.NODE, watched=True):
    """The cloud announces that it takes, stops or reboots an instance, or a node's readings show that it declines."""

    node: str
    instance: str | None = None
    code: str | None = None
    due: AwareDatetime | None = None
    why: str = ""
    """Why it declines; empty where it is the cloud's word."""
    committed_step: Whole = -1
    """Newest one at that time: the gang drains after the next."""

    def sentence(self) -> str:
        if self.why:
            return f"{short(self.node)} ({self.instance}) declines: {self.why}"
        due = "" if self.due is None else f" at {self.due.isoformat(timespec='seconds')}"
        return f"EC2 announces {self.code} of {short(self.node)} ({self.instance}){due}"


class NodeRebooted(Payload, kind="node.rebooted", notice=Change.NODE, watched=True):
    """The steward had EC2 reboot an instance, once, before it would replace it."""

    node: str
    instance: str
    reason: str
    until: AwareDatetime
    """The node is waited for until then."""
    refusal: str = ""
    """EC2's words, where it refused."""

    def sentence(self) -> str:
        refusal = f", which EC2 refuses: {self.refusal}" if self.refusal else ""
        return f"{short(self.node)} ({self.instance}) is rebooted{refusal}: {self.reason}"


class LaunchBudget(Payload, kind="launch.budget"):
    """If training does not run by then, the closer gives the GPU nodes back."""

    until: AwareDatetime
    usd: Decimal
    """Of the whole bill."""

    def sentence(self) -> str:
        return f"training must run by {self.until.isoformat()}, before {self.usd} USD are spent"


class NodeShare(Payload):
    """So many of the spec's GPU nodes bill from here on."""

    nodes: Whole
    of: Annotated[Whole, Field(gt=0)]
    """Of the spec."""

    @property
    def share(self) -> Fraction:
        return Fraction(self.nodes, self.of)


class NodesCounted(NodeShare, kind="nodes.counted"):
    """What the steward saw."""


class PilotBegun(NodeShare, kind="pilot.begun"):
    def sentence(self) -> str:
        return f"a pilot: {plural(self.nodes, 'GPU node')} of {self.of} is asked for first"


class PilotProven(Payload, kind="pilot.proven"):
    """The other nodes are asked for next."""

    node: str | None = None
    instance: str | None = None
    digest: str
    """Of what it proved."""

    def sentence(self) -> str:
        return f"the pilot {self.node} proved itself: the other nodes are asked for"


class NodesAtZero(Payload, kind="nodes.at-zero"):
    group: str | None = None
    why: str | None = None
    """Why the closer gave them back; None for everybody else."""
    since: AwareDatetime | None = None
    """When a schedule of AWS's ended them and nobody was there to record it; None: at the event's own time."""

    def sentence(self) -> str:
        addition = f" since {self.since.isoformat()}, by a schedule of AWS's" if self.since else ""
        return f"{self.group} is at zero nodes{addition}" + (f": {self.why}" if self.why else "")


class AttemptLaunched(Payload, kind="attempt.launched", watched=True):
    attempt: Whole
    jobset: str | None = None
    committed_step: Whole = -1
    nodes: Whole = 0
    """Of its gang; 0: all of the spec's."""

    def sentence(self) -> str:
        nodes = f" with {plural(self.nodes, 'node')}" if self.nodes else ""
        return f"attempt {self.attempt} launched as {self.jobset} from step {max(self.committed_step, 0)}{nodes}"


class GangResized(Payload, kind="gang.resized", notice=Change.NODE, watched=True):
    """The next attempt trains on another number of nodes than the one before."""

    attempt: Whole
    nodes: Whole
    previous_nodes: Whole
    of: Whole
    """Of the spec."""
    why: str

    def sentence(self) -> str:
        change = "goes on with fewer nodes" if self.nodes < self.previous_nodes else "grows again"
        return (
            f"the gang {change}: attempt {self.attempt} has {self.nodes} of {self.of}, "
            f"after {self.previous_nodes}: {self.why}"
        )


class AttemptRunning(Payload, kind="attempt.running"):
    attempt: Whole
    step: Whole | None = None
    nodes: tuple[str, ...] = ()
    node_ranks: tuple[Whole | None, ...] = ()
    """Of its pods, in the order of their indexes."""

    def sentence(self) -> str:
        return f"attempt {self.attempt} trains on {', '.join(map(short, self.nodes))}"


class AttemptRestartedInPlace(
    PrintedPayload,
    kind="attempt.restarted-in-place",
    line="restarted_in_place",
    needed=("attempt", "step"),
    watched=True,
):
    step: Count | None = None
    culprit: Count | None = None
    """Its rank, if it is known."""
    of_node: Text | None = None
    cause: Text | None = None
    seconds: FiniteFloat | None = None
    """From the death to a new step."""

    def sentence(self) -> str:
        process = f"a process on {short(self.of_node)}: {self.cause}"
        return f"attempt {self.attempt} trains again in its pods after {self.seconds} s, since {process}"


class AttemptEnded(Payload, kind="attempt.ended", watched=True):
    attempt: Whole
    failure: str | None = None
    """Its class; None for an attempt that ended well."""
    detail: str | None = None
    words: Any = None
    """The job's last ones."""
    step: Whole | None = None
    committed_at_end: Whole = -1
    dead_nodes: tuple[str, ...] = ()
    sick_nodes: tuple[str, ...] = ()
    """Those of them that answered, and computed wrongly."""
    first_failed: str | None = None
    culprit: dict[str, Any] | None = None
    """`ranks`, `nodes`, `why`."""
    instances: dict[str, str] = Field(default_factory=dict)
    """Node -> instance."""
    began: bool = True
    """False: no container of its pods has started."""
    nothing_sound: bool = False
    grows_to: Whole = 0
    """It was sound, and so many nodes were there for the next one; 0: it was not ended for that."""
    log: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    """Names below the record of its ranks' stacks, where it hung."""

    def sentence(self) -> str:
        failure = f"{self.failure} failure: " if self.failure else ""
        return f"attempt {self.attempt} ended at step {self.step}: {failure}{self.detail}"


class AttemptRecord(Frozen):
    """One launch of the job, and what is known of it since."""

    launched: AttemptLaunched
    launched_at: datetime
    node_ranks: tuple[int | None, ...] = ()
    """Of its pods, by their index, once it trains."""
    ended: AttemptEnded | None = None
    ended_at: datetime | None = None

    @property
    def number(self) -> int:
        return self.launched.attempt

    @property
    def failure(self) -> str | None:
        """Class of its failure; None: it has not failed, so far."""
        return self.ended.failure if self.ended is not None else None

    def last_step(self, otherwise: int) -> int:
        """Return the step of its end, or `otherwise` as long as the record does not know it."""
        return otherwise if self.ended is None or self.ended.step is None else self.ended.step

    @property
    def committed(self) -> int:
        """Newest step on the shared tier as far as is known: at its end, else at its launch; -1: none."""
        if self.ended is not None and "committed_at_end" in self.ended.model_fields_set:
            return self.ended.committed_at_end
        return self.launched.committed_step

    @property
    def began(self) -> bool:
        """False if it is known that no container of its pods has started."""
        return self.ended is None or self.ended.began
