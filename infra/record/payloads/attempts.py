"""Nodes, the pilot, and the attempts that train."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from infra.console.words import plural
from infra.record.kinds import Kind, Stage
from infra.record.payloads.base import Payload, Update, Whole
from infra.record.state import CampaignState
from infra.spec.notify import Change


def short(node: object) -> str:
    """Return a node's name without its domain."""
    return str(node).split(".", 1)[0]


class NodeVerdict(Payload):
    kind = Kind.NODE_VERDICT

    node: str
    instance: str | None = None
    fit: bool = True
    probes: tuple[dict[str, Any], ...] = ()

    def sentence(self) -> str:
        return f"{short(self.node)} ({self.instance}) is {'fit' if self.fit else 'unfit'}"


class NodeQuarantined(Payload):
    kind = Kind.NODE_QUARANTINED
    notice = Change.NODE
    watched = True

    node: str
    instance: str | None = None
    reason: str | None = None

    def sentence(self) -> str:
        return f"{short(self.node)} ({self.instance}) quarantined: {self.reason}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"repairs": (*state.repairs, at)}


class LaunchBudget(Payload):
    """If training does not run by then, the closer gives the GPU nodes back."""

    kind = Kind.LAUNCH_BUDGET

    until: AwareDatetime
    usd: Decimal
    """Of the whole bill."""

    def sentence(self) -> str:
        return f"training must run by {self.until.isoformat()}, before {self.usd} USD are spent"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"launch_budget": (self.until, self.usd)}


class NodeShare(Payload):
    """So many of the spec's GPU nodes bill from here on."""

    nodes: Whole
    of: Annotated[Whole, Field(gt=0)]
    """Of the spec."""

    @property
    def share(self) -> Fraction:
        return Fraction(self.nodes, self.of)


class NodesCounted(NodeShare):
    """What the steward saw."""

    kind = Kind.NODES_COUNTED


class PilotBegun(NodeShare):
    kind = Kind.PILOT_BEGUN

    def sentence(self) -> str:
        return f"a pilot: {plural(self.nodes, 'GPU node')} of {self.of} is asked for first"


class PilotProven(Payload):
    """The other nodes are asked for next."""

    kind = Kind.PILOT_PROVEN

    node: str | None = None
    instance: str | None = None
    digest: str
    """Of what it proved."""

    def sentence(self) -> str:
        return f"the pilot {self.node} proved itself: the other nodes are asked for"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"pilot_proved": self.digest}


class NodesAtZero(Payload):
    kind = Kind.NODES_AT_ZERO

    group: str | None = None
    why: str | None = None
    """Why the closer gave them back; None for everybody else."""

    def sentence(self) -> str:
        return f"{self.group} is at zero nodes" + (f": {self.why}" if self.why else "")

    def update(self, state: CampaignState, at: datetime) -> Update:
        change: dict[str, Any] = {"gpu_nodes_up": False, "closed": state.outcome is not None, "archives_on": None}
        if state.outcome is None:
            # The nodes were given back before training ended; their successors have not passed preflight.
            kept = {stage: outputs for stage, outputs in state.finished_stages.items() if stage != Stage.PREFLIGHT}
            change |= {"finished_stages": kept, "bake_again": not state.ran}
        return change


class AttemptLaunched(Payload):
    kind = Kind.ATTEMPT_LAUNCHED
    watched = True

    attempt: Whole
    jobset: str | None = None
    committed_step: Whole = -1

    def sentence(self) -> str:
        return f"attempt {self.attempt} launched as {self.jobset} from step {max(self.committed_step, 0)}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        # The new attempt's work is neither abandoned nor archived.
        launched = {**self.data(), "launched_at": at}
        return {"attempts": (*state.attempts, launched), "abandoned": False, "archive": None, "unproven": None}


class AttemptRunning(Payload):
    kind = Kind.ATTEMPT_RUNNING

    attempt: Whole
    step: Whole | None = None
    nodes: tuple[str, ...] = ()
    node_ranks: tuple[Whole | None, ...] = ()
    """Of its pods, in the order of their indexes."""

    def sentence(self) -> str:
        return f"attempt {self.attempt} trains on {', '.join(map(short, self.nodes))}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        attempts = _with(state, self.attempt, {"node_ranks": self.node_ranks})
        return {"ran": True, "attempts": attempts, "launch_budget": None}


class AttemptRestartedInPlace(Payload):
    kind = Kind.ATTEMPT_RESTARTED_IN_PLACE
    watched = True

    attempt: Whole
    pod: str | None = None
    generation: Whole | None = None
    step: Whole | None = None
    culprit: Whole | None = None
    """Its rank, if it is known."""
    of_node: str | None = None
    cause: str | None = None
    seconds: float | None = None
    """From the death to a new step."""

    def sentence(self) -> str:
        who = f"a process on {short(self.of_node)}: {self.cause}"
        return f"attempt {self.attempt} trains again in its pods after {self.seconds} s, since {who}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"restarted_in_place": state.restarted_in_place + 1}


class AttemptEnded(Payload):
    kind = Kind.ATTEMPT_ENDED
    watched = True

    attempt: Whole
    failure: str | None = None
    """Its class; None for an attempt that ended well."""
    detail: str | None = None
    words: Any = None
    """The job's last ones."""
    step: Whole | None = None
    committed_at_end: Whole = -1
    dead_nodes: tuple[str, ...] = ()
    first_failed: str | None = None
    culprit: dict[str, Any] | None = None
    """`ranks`, `nodes`, `why`."""
    instances: dict[str, str] = Field(default_factory=dict)
    """Node -> instance."""
    began: bool = True
    """False: no container of its pods has started."""
    nothing_sound: bool = False
    log: tuple[str, ...] = ()

    def sentence(self) -> str:
        failure = f"{self.failure} failure: " if self.failure else ""
        return f"attempt {self.attempt} ended at step {self.step}: {failure}{self.detail}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"attempts": _with(state, self.attempt, {**self.data(), "ended_at": at})}


def _with(state: CampaignState, attempt: int, facts: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the attempts, with more known of one of them."""
    return tuple({**known, **facts} if known["attempt"] == attempt else known for known in state.attempts)
