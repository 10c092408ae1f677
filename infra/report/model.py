"""The report as a value: everything the page shows, and what `report.json` holds."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from pydantic import BaseModel, ConfigDict

from infra.report.causes import TimeCause


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fact(Frozen):
    name: str
    value: str
    digest: bool = False
    """Set in fixed width."""


class FactGroup(Frozen):
    name: str
    facts: tuple[Fact, ...]


class Notice(Frozen):
    """Something that is not well, for the head of the page."""

    level: str
    """bad, warning, open (not well yet, since it is not over)."""
    text: str


class KeyFigure(Frozen):
    name: str
    value: str
    meaning: str
    level: str = ""
    """good, warning, bad, or nothing."""


class Gap(Frozen):
    """A time in which no stage ran, in seconds since the campaign began."""

    begun_s: float
    ended_s: float
    why: str


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
    steps: int
    """Steps it ran: more than there are points where the series is thinned."""


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

    cause: TimeCause
    seconds: float
    usd: Decimal


class Interruption(Frozen):
    number: int = 0
    """From 1 in the order of time: how pictures and text refer to it."""
    at_s: float
    attempt: int | None
    cause: str
    what: str
    evidence: tuple[str, ...] = ()
    answer: tuple[str, ...]
    action: str = ""
    """restart, replace, hold, stop, none: in a word."""
    detected_s: float | None = None
    """From the last finished step to the decision."""
    again_s: float | None = None
    """From the last finished step to the first step of the next attempt."""
    caught_up_s: float | None = None
    """From the last finished step until the last repeated step had been run again."""
    resumed_from: int | None = None
    steps_lost: int = 0
    """Steps behind the checkpoint that the next attempt resumed from."""
    steps_repeated: int = 0
    losses: tuple[Loss, ...] = ()
    seconds: float | None = None
    """None: training was not held up, or how much cannot be known."""
    usd: Decimal | None = None


class Share(Frozen):
    cause: TimeCause
    label: str
    meaning: str
    seconds: float
    time_share: float
    usd: Decimal
    money_share: float


class Item(Frozen):
    """One line of the bill against the plan's."""

    name: str
    planned_usd: Decimal
    planned: str
    """The plan's formula."""
    usd: Decimal
    counted: str
    """The formula of what was counted."""
    seconds: float | None = None
    """How long it was up; None for what bills by size."""


class KeptResource(Frozen):
    """What stays on purpose and what it costs until someone deletes it."""

    name: str
    where: str
    bytes: int | None
    usd_per_month: Decimal | None
    """None: its size or price is not on record."""
    formula: str


class Money(Frozen):
    notional: bool
    """True where nothing was billed: what the same clock would have cost on AWS."""
    by_time_usd: Decimal
    by_size_usd: Decimal
    total_usd: Decimal
    """To `resolution_usd`, to which causes and items add up exactly."""
    resolution_usd: Decimal
    planned_usd: Decimal
    budget_usd: Decimal
    prices_as_of: str
    items: tuple[Item, ...]
    kept: tuple[KeptResource, ...]
    unpriced: tuple[str, ...]
    assumptions: tuple[str, ...]


class PlannedStage(Frozen):
    stage: str
    planned_s: float
    actual_s: float | None
    formula: str


class StoredFile(Frozen):
    name: str
    bytes: int
    sha256: str


class CommandRecipe(Frozen):
    """Commands that do one thing."""

    title: str
    commands: str
    note: str = ""


class Golden(Frozen):
    step: int
    tokens: int | None
    manifest: str
    folder: str
    objects: int
    bytes: int
    """Of everything in the archive."""
    proof: str
    """Where the reference comes from: `recorded in training`, or `evaluated before upload` on the shared tier."""
    reference_loss: float | None
    restored_loss: float | None
    files: tuple[StoredFile, ...]
    """The checkpoint's own, the largest first; empty where the archive's manifest could not be read."""
    recipes: tuple[CommandRecipe, ...]
    """How to fetch it, verify every byte of it, evaluate it, and load it."""
    refused: tuple[str, ...] = ()
    """Newer checkpoints that were not sound."""

    @property
    def proven(self) -> bool:
        return self.restored_loss is not None and self.restored_loss == self.reference_loss


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
    suspects: tuple[str, ...] = ()
    """What only a person can judge."""
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

    format: int = 2
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
    verdict: str
    """One sentence for whoever reads nothing else."""
    notices: tuple[Notice, ...]
    figures: tuple[KeyFigure, ...]
    goodput: float | None
    """Useful new training time / paid time."""
    gpu_goodput: float | None
    """Useful new training time / time with GPU nodes up."""
    paid_s: float
    clock_s: float
    gpu_s: float
    facts: tuple[FactGroup, ...]
    spec: str
    """As YAML."""
    stages: tuple[StageTime, ...]
    attempts: tuple[AttemptTime, ...]
    gpu_up: tuple[tuple[float, float], ...]
    """When GPU nodes were paid, in seconds since the campaign began."""
    marks: tuple[Mark, ...]
    gaps: tuple[Gap, ...]
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
