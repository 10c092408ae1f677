"""Stages, and the driver that runs them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import SerializeAsAny, ValidationInfo, field_validator

from infra.console.words import clock, plural, size
from infra.record.payloads.base import Payload, Whole, by
from infra.record.payloads.outputs import OUTPUTS, Stage, StageOutput
from infra.spec.notify import Change


class StageStarted(Payload, kind="stage.started"):
    stage: Stage
    who: str | None = None
    """ARN of the caller."""

    def sentence(self) -> str:
        return f"{self.stage} begins{by(self.who)}"


class StageFinished(Payload, kind="stage.finished"):
    stage: Stage
    seconds: float = 0.0
    outputs: SerializeAsAny[StageOutput] = StageOutput()

    @field_validator("outputs", mode="before")
    @classmethod
    def _of_its_stage(cls, outputs: Any, info: ValidationInfo) -> Any:
        """Read what is stored by the model of its stage."""
        model = OUTPUTS.get(info.data["stage"], StageOutput) if "stage" in info.data else StageOutput
        return model.model_validate(outputs)

    def sentence(self) -> str:
        return f"{self.stage} finished in {clock(self.seconds)}"


class StageFailed(Payload, kind="stage.failed", notice=Change.FAILED):
    stage: Stage
    error: str | None = None
    cut_off: bool = False
    """No GPU node was given back."""

    @property
    def gave_nodes_back(self) -> bool:
        return self.stage is Stage.PREFLIGHT and not self.cut_off

    def sentence(self) -> str:
        return f"{self.stage} failed: {self.error}"


class DriverTookOver(Payload, kind="driver.took-over"):
    holder: str | None = None
    previous: str | None = None
    who: str | None = None

    def sentence(self) -> str:
        return f"{self.holder} took over from {self.previous}{by(self.who)}"


class DataBegun(Payload, kind="data.begun"):
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


class DataEnded(Payload, kind="data.ended"):
    """Its nodes go."""

    digest: str | None = None
    error: str | None = None

    def sentence(self) -> str:
        if self.error:
            return f"the data were not prepared: {self.error}"
        return f"the data are prepared: {str(self.digest)[:12]}"


class Detached(Payload, kind="detached"):
    holder: str | None = None
    deadline: str | None = None


class Closing(Payload, kind="closing"):
    """The closer ends the campaign."""

    why: str | None = None


class Attached(Payload, kind="attached"):
    """A driver drives again what was detached, or what the closer had begun to end."""

    holder: str | None = None


class Decision(Payload, kind="decision", watched=True):
    action: str | None = None
    why: str | None = None
    grows_to: Whole = 0
    """Nodes of the next attempt, if this one is ended to grow: its end is recorded only after its commit."""

    def sentence(self) -> str:
        return f"decided: {self.action}, since {self.why}"


class DecisionWithheld(Payload, kind="decision.withheld", notice=Change.HELD, watched=True):
    """What `recovery.act: act` would have done; once for each attempt and action."""

    attempt: Whole = 0
    action: str | None = None
    failure: str | None = None
    """Class of the failure, if the action ends an attempt."""
    nodes: tuple[str, ...] = ()
    """That would have been replaced, or are dead."""
    why: str | None = None

    def sentence(self) -> str:
        nodes = f" ({', '.join(self.nodes)})" if self.nodes else ""
        return f"not done, by `recovery.act: log`: {self.action}{nodes} in attempt {self.attempt}, since {self.why}"


class OperatorEntered(Payload, kind="operator.entered"):
    who: str | None = None
    attempt: Whole | None = None
    node: Whole | None = None
    pod: str | None = None
    program: str | None = None
    """Without its arguments, which may hold secrets."""

    def sentence(self) -> str:
        return f"{self.who} ran {self.program} on node {self.node} of attempt {self.attempt}"


class ResidueSwept(Payload, kind="swept"):
    """Removed, though no stack knew it."""

    things: tuple[str, ...]

    def sentence(self) -> str:
        return f"removed what the stack did not know: {', '.join(self.things)}"


class Abandoned(Payload, kind="abandoned"):
    """Written before a teardown without a verified archive removes anything."""

    who: str | None = None
    identity: str | None = None
    """Of an orphan, whose record is gone."""

    def sentence(self) -> str:
        return f"what was trained was given up without an archive (--abandon){by(self.who)}"


class NoticeFailed(Payload, kind="notice.failed", watched=True):
    """The first time of each error."""

    way: str | None = None
    error: str | None = None

    def sentence(self) -> str:
        return f"a notice was not sent by {self.way}: {self.error}"


class Certified(Payload, kind="certified"):
    clean: bool = False
    looks: Whole | None = None
    """Kinds of resources that were looked for."""
    found: tuple[Any, ...] = ()
    could_not_look: tuple[Any, ...] = ()
    suspects: tuple[Any, ...] | None = None
    kept: tuple[Any, ...] | None = None
    """What stays on purpose."""

    def sentence(self) -> str:
        return "certified: nothing left" if self.clean else f"not certified: {list(self.found)}"


class UnreadableRecord(Payload, kind="record.unreadable"):
    """Stands for an object of the record that cannot be read, and is never written."""

    key: str
    why: str

    def sentence(self) -> str:
        return f"1 object of the record cannot be read: {self.key}: {self.why}"
