"""Stages, and the driver that runs them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic import Field

from infra.console.words import clock, plural, size
from infra.record.kinds import Kind, Stage
from infra.record.payloads.base import Payload, Update, Whole, by
from infra.record.state import CampaignState
from infra.spec.notify import Change


class StageStarted(Payload):
    kind = Kind.STAGE_STARTED

    stage: Stage
    who: str | None = None
    """ARN of the caller."""

    def sentence(self) -> str:
        return f"{self.stage} begins{by(self.who)}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        finished = {stage: outputs for stage, outputs in state.finished_stages.items() if stage != self.stage}
        change: dict[str, Any] = {"running_stage": self.stage, "finished_stages": finished}
        change |= {"started_at": state.started_at or at, "begun_with": state.begun_with or self.stage}
        return change | ({"gpu_nodes_up": True} if self.stage is Stage.PREFLIGHT else {})


class StageFinished(Payload):
    kind = Kind.STAGE_FINISHED

    stage: Stage
    seconds: float = 0.0
    outputs: dict[str, Any] = Field(default_factory=dict)

    def sentence(self) -> str:
        return f"{self.stage} finished in {clock(self.seconds)}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        change = {"running_stage": None, "finished_stages": state.finished_stages | {self.stage: self.outputs}}
        return change | ({"bake_again": False} if self.stage is Stage.BAKE else {})


class StageFailed(Payload):
    kind = Kind.STAGE_FAILED
    notice = Change.FAILED

    stage: Stage
    error: str | None = None
    cut_off: bool = False
    """No GPU node was given back."""

    @property
    def gave_nodes_back(self) -> bool:
        return self.stage is Stage.PREFLIGHT and not self.cut_off

    def sentence(self) -> str:
        return f"{self.stage} failed: {self.error}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"running_stage": None, **({"gpu_nodes_up": False} if self.gave_nodes_back else {})}


class DriverTookOver(Payload):
    kind = Kind.DRIVER_TOOK_OVER

    holder: str | None = None
    previous: str | None = None
    who: str | None = None

    def sentence(self) -> str:
        return f"{self.holder} took over from {self.previous}{by(self.who)}"


class DataBegun(Payload):
    kind = Kind.DATA_BEGUN

    nodes: Whole = 1
    """That bill from here on."""
    usd_per_hour: Decimal = Decimal(0)
    """Of them all; earlier versions noted none."""
    plan: Any = None
    files: Whole = 0
    bytes: Whole = 0

    def sentence(self) -> str:
        amount = f"{plural(self.files, 'file')}, {size(self.bytes)}"
        return f"{plural(self.nodes, 'node')} prepare the data in the cluster: {amount}"


class DataEnded(Payload):
    """Its nodes go."""

    kind = Kind.DATA_ENDED

    digest: str | None = None
    error: str | None = None

    def sentence(self) -> str:
        if self.error:
            return f"the data were not prepared: {self.error}"
        return f"the data are prepared: {str(self.digest)[:12]}"


class Detached(Payload):
    kind = Kind.DETACHED

    holder: str | None = None
    deadline: str | None = None

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"detached": state.detached or at}


class Closing(Payload):
    """The closer ends the campaign."""

    kind = Kind.CLOSING

    why: str | None = None

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"detached": state.detached or at}


class Attached(Payload):
    """A driver drives again what was detached, or what the closer had begun to end."""

    kind = Kind.ATTACHED

    holder: str | None = None

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"detached": None}


class Decision(Payload):
    kind = Kind.DECISION
    watched = True

    action: str | None = None
    why: str | None = None

    def sentence(self) -> str:
        return f"decided: {self.action}, since {self.why}"


class OperatorEntered(Payload):
    kind = Kind.OPERATOR_ENTERED

    who: str | None = None
    attempt: Whole | None = None
    node: Whole | None = None
    pod: str | None = None
    program: str | None = None
    """Without its arguments, which may hold secrets."""

    def sentence(self) -> str:
        return f"{self.who} ran {self.program} on node {self.node} of attempt {self.attempt}"


class ResidueSwept(Payload):
    """Removed, though no stack knew it."""

    kind = Kind.SWEPT

    things: tuple[str, ...]

    def sentence(self) -> str:
        return f"removed what the stack did not know: {', '.join(self.things)}"


class Abandoned(Payload):
    """Written before a teardown without a verified archive removes anything."""

    kind = Kind.ABANDONED

    who: str | None = None
    identity: str | None = None
    """Of an orphan, whose record is gone."""

    def sentence(self) -> str:
        return f"what was trained was given up without an archive (--abandon){by(self.who)}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"abandoned": True}


class NoticeFailed(Payload):
    """The first time of each error."""

    kind = Kind.NOTICE_FAILED
    watched = True

    way: str | None = None
    error: str | None = None

    def sentence(self) -> str:
        return f"a notice was not sent by {self.way}: {self.error}"


class Certified(Payload):
    kind = Kind.CERTIFIED

    clean: bool = False
    found: tuple[Any, ...] = ()
    could_not_look: tuple[Any, ...] = ()

    def sentence(self) -> str:
        return "certified: nothing left" if self.clean else f"not certified: {list(self.found)}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"certificate": self.data()}


class UnreadableRecord(Payload):
    """Stands for an object of the record that cannot be read, and is never written."""

    kind = Kind.UNREADABLE

    key: str
    why: str

    def sentence(self) -> str:
        return f"1 object of the record cannot be read: {self.key}: {self.why}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        # It may have been a launch, whose work is neither abandoned nor archived.
        return {"unreadable": state.unreadable + 1, "doubted": True, "abandoned": False}
