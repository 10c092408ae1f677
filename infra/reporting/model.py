"""The report as a value: everything the page shows, and what `report.json` holds."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cause(StrEnum):
    """Where a paid second went; every one has exactly one cause."""

    USEFUL = "useful"
    EVALUATION = "evaluation"
    SAVING = "saving"
    REDO = "redo"
    STARTUP = "startup"
    REPLACE = "replace"
    PROVISION = "provision"
    BAKE = "bake"
    PREFLIGHT = "preflight"
    ARCHIVE = "archive"
    TEARDOWN = "teardown"
    IDLE = "idle"


LABELS: dict[Cause, tuple[str, str]] = {
    Cause.USEFUL: ("useful training", "steps run for the first time"),
    Cause.EVALUATION: ("evaluation", "held-out loss, by rank 0"),
    Cause.SAVING: ("between steps", "checkpoint stall, logging, the last save"),
    Cause.REDO: ("redo", "steps that an earlier attempt had already run"),
    Cause.STARTUP: ("startup and restore", "steward, pods, ranks, checkpoint read; to the first step"),
    Cause.REPLACE: ("detect and replace", "from the last step before a failure to the next launch"),
    Cause.PROVISION: ("provision", "the campaign's stack"),
    Cause.BAKE: ("bake", "the trainer's image"),
    Cause.PREFLIGHT: ("preflight", "nodes up and proven"),
    Cause.ARCHIVE: ("archive", "golden checkpoint out, read back, evaluated"),
    Cause.TEARDOWN: ("teardown", "everything that bills destroyed"),
    Cause.IDLE: ("idle", "paid, and nothing of the above: no driver between stages, or a hold"),
}


class Fact(Frozen):
    name: str
    value: str
    digest: bool = False
    """Set in fixed width."""


class StageTime(Frozen):
    """One run of a stage, in seconds since the campaign began."""

    stage: str
    begun_s: float
    ended_s: float
    ending: str
    """finished, failed, cut off (its driver went away), running."""
    error: str | None = None

    @property
    def seconds(self) -> float:
        return self.ended_s - self.begun_s


class AttemptTime(Frozen):
    """One attempt in seconds since the campaign began; `None` for what did not happen."""

    attempt: int
    from_step: int
    """The checkpoint it resumed from; 0 from the beginning."""
    launched_s: float
    first_step_s: float | None = None
    """When its first step began."""
    redone_s: float | None = None
    """When its last repeated step ended."""
    last_step_s: float | None = None
    ended_s: float
    next_launch_s: float | None = None
    steps: int = 0
    repeated: int = 0
    last_step: int = 0
    nodes: tuple[str, ...] = ()
    failure: str | None = None
    detail: str | None = None
    running: bool = False


class Mark(Frozen):
    """A moment worth seeing on the timeline."""

    at_s: float
    kind: str
    """quarantine, refused, takeover, unfit."""
    label: str


class LossPoint(Frozen):
    step: int
    loss: float
    repeated: bool = False


class Losses(Frozen):
    """The loss series of one attempt."""

    attempt: int
    points: tuple[LossPoint, ...]


class Evaluated(Frozen):
    attempt: int
    step: int
    loss: float


class Repeats(Frozen):
    """Steps that more than one attempt ran, compared bit by bit."""

    steps: int
    equal: int
    first_step: int | None = None
    last_step: int | None = None
    greatest_difference: float = 0.0

    @property
    def bitwise_equal(self) -> bool:
        return self.equal == self.steps


class Training(Frozen):
    losses: tuple[Losses, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()
    unigram_loss: float | None = None
    """What a model that only knows how often each token occurs would reach."""
    repeats: Repeats = Repeats(steps=0, equal=0)
    steps_done: int = 0
    steps_wanted: int = 0


class Loss(Frozen):
    """Seconds and money of one cause within an interruption."""

    cause: Cause
    seconds: float
    usd: Decimal


class Interruption(Frozen):
    at_s: float
    attempt: int | None
    cause: str
    what: str
    answer: tuple[str, ...]
    resumed_from: int | None = None
    steps_repeated: int = 0
    losses: tuple[Loss, ...] = ()
    seconds: float | None = None
    """None: training was not held up, or how much cannot be known."""
    usd: Decimal | None = None


class Share(Frozen):
    cause: Cause
    label: str
    meaning: str
    seconds: float
    time_share: float
    usd: Decimal
    money_share: float


class Rate(Frozen):
    """One line of the bill."""

    name: str
    usd_per_hour: Decimal
    seconds: float
    usd: Decimal
    formula: str


class Money(Frozen):
    notional: bool
    """True where nothing was billed: what the same clock would have cost on AWS."""
    by_time_usd: Decimal
    by_size_usd: Decimal
    total_usd: Decimal
    planned_usd: Decimal
    budget_usd: Decimal
    prices_as_of: str
    rates: tuple[Rate, ...]
    unpriced: tuple[str, ...]
    assumptions: tuple[str, ...]


class PlannedStage(Frozen):
    stage: str
    planned_s: float
    actual_s: float | None
    formula: str


class Golden(Frozen):
    step: int
    manifest: str
    folder: str
    objects: int
    bytes: int
    recorded_loss: float | None
    restored_loss: float | None
    commands: tuple[str, ...]
    """How to fetch it, verify every byte of it, and evaluate it."""

    @property
    def proven(self) -> bool:
        return self.restored_loss is not None and self.restored_loss == self.recorded_loss


class LookRow(Frozen):
    service: str
    kind: str
    listed: int
    found: tuple[str, ...] = ()
    could_not_look: str | None = None


class CertificateSummary(Frozen):
    clean: bool
    at: datetime | None = None
    principal: str | None = None
    looks: int = 0
    listed: int = 0
    found: tuple[str, ...] = ()
    could_not_look: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    rows: tuple[LookRow, ...] = ()


class Happened(Frozen):
    at_s: float
    writer: str
    kind: str
    text: str


class Report(Frozen):
    """A campaign as its record tells it, whole or in part."""

    format: int = 1
    campaign: str
    purpose: str
    owner: str
    target: str
    made_at: datetime
    begun_at: datetime | None
    status: str
    """In a few words, for the head of the page."""
    level: str
    """good, warning, bad, open."""
    summary: tuple[str, ...]
    goodput: float | None
    """Useful new training time / paid time."""
    gpu_goodput: float | None
    """Useful new training time / time with GPU nodes up."""
    paid_s: float
    clock_s: float
    facts: tuple[Fact, ...]
    stages: tuple[StageTime, ...]
    attempts: tuple[AttemptTime, ...]
    gpu_up: tuple[tuple[float, float], ...]
    """When GPU nodes were paid, in seconds since the campaign began."""
    marks: tuple[Mark, ...]
    training: Training
    interruptions: tuple[Interruption, ...]
    shares: tuple[Share, ...]
    money: Money
    plan: tuple[PlannedStage, ...]
    golden: Golden | None
    certificate: CertificateSummary | None
    emulated: tuple[str, ...]
    not_rehearsed: tuple[str, ...]
    happened: tuple[Happened, ...]
