"""The report as a value: everything on the page, and the content of `report.json`."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from pydantic import Field

from infra.plan.estimates.figure import Figure
from infra.report.causes import TimeCause
from infra.report.trained import Evaluated as Evaluated
from infra.report.trained import Frozen
from infra.report.trained import Losses as Losses
from infra.report.trained import LossPoint as LossPoint
from infra.report.trained import Repeats as Repeats
from infra.report.trained import TrainingCurves as TrainingCurves
from infra.report.trained import WatchAlarm as WatchAlarm


class Fact(Frozen):
    name: str
    value: str
    digest: bool = False
    """Shown in fixed width."""


class FactGroup(Frozen):
    name: str
    facts: tuple[Fact, ...]


class ReportProblem(Frozen):
    """A problem, for the head of the page."""

    level: str
    """bad, warning, or open (not finished, so not good yet)."""
    text: str


class KeyFigure(Frozen):
    name: str
    value: str
    meaning: str
    level: str = ""
    """good, warning, bad, or empty."""


class Gap(Frozen):
    """A time without a running stage, in seconds since the campaign began."""

    begun_s: float
    ended_s: float
    why: str


class StageRun(Frozen):
    """One run of a stage, in seconds since the campaign began."""

    stage: str
    begun_s: float
    ended_s: float
    ending: str
    """finished, failed, cut off (its driver vanished), running."""
    error: str | None = None

    @property
    def seconds(self) -> float:
        return self.ended_s - self.begun_s


class AttemptTime(Frozen):
    """One attempt in seconds since the campaign began; `None` if it did not happen."""

    attempt: int
    from_step: int
    """Step of the checkpoint that it resumed; 0 for a fresh start."""
    launched_s: float
    first_step_s: float | None = None
    """Start of its first step."""
    redone_s: float | None = None
    """End of its last repeated step."""
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
    at_s: float
    kind: str
    """quarantine, resized, refused, fetched, takeover, unfit."""
    label: str


class Loss(Frozen):
    """Seconds and money of one cause within an interruption."""

    cause: TimeCause
    seconds: float
    usd: Decimal


class Interruption(Frozen):
    number: int = 0
    """Number from 1 in the order of time, used in charts and text."""
    at_s: float
    attempt: int | None = None
    cause: str
    what: str
    evidence: tuple[str, ...] = ()
    answer: tuple[str, ...]
    action: str = ""
    """Short form of the answer: restarted, replaced, held, ..."""
    detected_s: float | None = None
    """Time from the last finished step to the decision."""
    again_s: float | None = None
    """Time from the last finished step to the first step of the next attempt."""
    caught_up_s: float | None = None
    """Time from the last finished step until the last repeated step had run again."""
    resumed_from: int | None = None
    steps_lost: int = 0
    """Steps after the checkpoint that the next attempt resumed from."""
    steps_repeated: int = 0
    losses: tuple[Loss, ...] = ()
    seconds: float | None = None
    """None: training was not delayed, or the delay is unknown."""
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
    """One line of the bill, compared with the plan's."""

    name: str
    planned_usd: Decimal
    planned: str
    """The plan's formula."""
    usd: Decimal
    counted: str
    """Formula of the counted cost."""
    seconds: float | None = None
    """Time for which it was up; None if it bills by size."""


class KeptResource(Frozen):
    """A resource that stays on purpose, with its cost until someone deletes it."""

    name: str
    where: str
    bytes: int | None = None
    usd_per_month: Decimal | None = None
    """None: its size or price is not recorded."""
    formula: str


class MoneySpent(Frozen):
    notional: bool
    """True if nothing was billed: the amounts are what the same duration would have cost on AWS."""
    by_time_usd: Decimal
    by_size_usd: Decimal
    total_usd: Decimal
    """Rounded to `resolution_usd`; causes and items sum to it exactly."""
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


class PlanError(Frozen):
    """A figure of the plan beside what the campaign measured."""

    figure: Figure
    measured: float | None

    @property
    def error(self) -> float | None:
        """Return (planned - measured) / measured; None if nothing was measured."""
        return None if not self.measured else float(self.figure.value) / self.measured - 1


class StoredFile(Frozen):
    name: str
    bytes: int
    sha256: str


class CommandRecipe(Frozen):
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
    """Size of the whole archive."""
    proof: str
    """Origin of the reference loss: `recorded in training`, or `evaluated before upload` on the shared tier; of a
    workload, what its own evaluation has shown."""
    metrics: dict[str, float] = Field(default={})
    """Of a workload's checkpoint, by its own evaluation."""
    export_metrics: dict[str, float] = Field(default={})
    """The same of its export."""
    tolerance: float | None = None
    """Relative, of each metric."""
    reference_loss: float | None
    restored_loss: float | None
    files: tuple[StoredFile, ...]
    """The checkpoint's files, largest first; empty if the archive's manifest could not be read."""
    recipes: tuple[CommandRecipe, ...]
    """Commands that fetch it, verify every byte, evaluate it and load it."""
    refused: tuple[str, ...] = ()
    """Newer checkpoints that were not sound."""

    @property
    def proven(self) -> bool:
        return self.restored_loss is not None and self.restored_loss == self.reference_loss

    @property
    def near(self) -> bool:
        """The restored model's loss is not equal, and within the tolerance that the spec states."""
        if self.proven or self.tolerance is None or self.restored_loss is None or self.reference_loss is None:
            return False
        return abs(self.restored_loss - self.reference_loss) <= self.tolerance * abs(self.reference_loss)


class LookRow(Frozen, extra="ignore"):
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
    """Resources that only a person can judge."""
    could_not_look: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    rows: tuple[LookRow, ...] = ()


class Happened(Frozen):
    at_s: float
    writer: str
    kind: str
    text: str


class Report(Frozen):
    """A campaign according to its record, complete or not."""

    format: int = 2
    campaign: str
    purpose: str
    owner: str
    target: str
    made_at: datetime
    begun_at: datetime | None
    status: str
    """A few words for the head of the page."""
    level: str
    """good, warning, bad, open."""
    verdict: str
    """Summary in one sentence."""
    notices: tuple[ReportProblem, ...]
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
    """YAML text."""
    stages: tuple[StageRun, ...]
    attempts: tuple[AttemptTime, ...]
    gpu_up: tuple[tuple[float, float], ...]
    """Paid times of GPU nodes, in seconds since the campaign began."""
    marks: tuple[Mark, ...]
    gaps: tuple[Gap, ...]
    training: TrainingCurves
    interruptions: tuple[Interruption, ...]
    shares: tuple[Share, ...]
    money: MoneySpent
    plan: tuple[PlannedStage, ...]
    plan_errors: tuple[PlanError, ...] = ()
    golden: Golden | None
    certificate: CertificateSummary | None
    emulated: tuple[str, ...]
    not_rehearsed: tuple[str, ...]
    happened: tuple[Happened, ...]
