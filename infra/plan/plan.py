"""The plan: cost, duration and storage of a campaign, as a value that can be printed, stored and compared."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Literal

from infra.errors import UserError
from infra.plan.estimates import cost
from infra.plan.estimates.campaign import Estimate, estimate
from infra.plan.estimates.clock import UNTIL_ARCHIVED, StageTime, launch_wait, seconds
from infra.plan.estimates.cost import CostLine
from infra.plan.estimates.figure import Figure, cents, figure
from infra.plan.estimates.step_time import seconds_of, with_step_time
from infra.plan.estimates.storage import TierSize
from infra.plan.estimates.work import work_figures
from infra.plan.facts import Facts, Offer
from infra.plan.layout import GangLayout, layout
from infra.plan.pilot import pilot_figures
from infra.plan.purchase import RESERVED, SCALE_DOWN
from infra.spec import duration
from infra.spec.campaign import Spec
from trainer.contract import CheckpointConfig
from trainer.contract.frozen import Frozen


class Totals(Frozen):
    clock: Figure
    """Seconds of all stages."""
    gpu_clock: Figure
    """Seconds from the first provision to the last use of a GPU node; the deadline must be later."""
    usd: Figure
    usd_per_hour: Figure
    """Rate with GPU nodes up."""
    usd_per_hour_idle: Figure
    """Rate with the GPU node group at zero, which bills until the teardown."""
    usd_at_deadline: Figure
    """Cost if the GPU nodes stay up until the deadline."""
    usd_of_dead_launch: Figure | None = None
    """Most that the time between two steps of a launch costs whose driver is gone, before AWS's schedule sets the GPU
    nodes to zero; None where none does: nodes that are reserved or borrowed, and plans older than the field."""


class BlockTimes(Frozen):
    """Times that follow from the end of a capacity block."""

    ends: datetime
    nodes_until: datetime
    """Time at which EKS removes the nodes; a later `deadline` has no effect."""
    train_until: datetime
    """Last time at which an interval may begin to be saved and archived in time."""


class Plan(Frozen):
    format: Literal[1] = 1
    campaign: str
    target: str
    spec_digest: str
    prices_as_of: date
    offer: Offer | None
    layout: GangLayout
    work: tuple[Figure, ...]
    clock: tuple[StageTime, ...]
    deadline: timedelta
    block: BlockTimes | None = None
    """None: no capacity block, or the spec lacks its end."""
    pilot: tuple[Figure, ...] = ()
    """Savings and cost of a pilot; empty: all GPU nodes start at once."""
    cost: tuple[CostLine, ...]
    budget_usd: Decimal
    totals: Totals
    tiers: tuple[TierSize, ...]
    cadence: tuple[Figure, ...]
    checkpoint: CheckpointConfig
    """Configuration of the ranks: the spec's own section if it has one, else derived."""
    checkpoint_derived: bool
    makes_cluster: bool = True
    """As of `Environment`: else nodes, cluster and file system are borrowed."""

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Cost lines that count as 0 because no price is known."""
        return tuple(line.name for line in self.cost if not line.priced)

    def figure(self, name: str) -> Figure:
        """Return a figure of work or cadence; raise `KeyError` with all names if there is none."""
        figures = {item.name: item for item in (*self.work, *self.cadence)}
        if name not in figures:
            raise KeyError(f"the plan has no figure `{name}`; it has: {', '.join(figures)}")
        return figures[name]


def make_plan(spec: Spec, facts: Facts) -> Plan:
    """Return the plan; raise `UserError` if there is none (`check` explains more). Pure."""
    try:
        return _plan(spec, facts)
    except ArithmeticError as error:
        cure = "look for a number with some zeros too many or too few"
        raise UserError("the campaign has a number that is too large", seen=type(error).__name__, cure=cure) from error


def _plan(spec: Spec, facts: Facts) -> Plan:
    shape = layout(spec)
    guess = estimate(spec, facts, shape.world_size)
    return Plan(
        campaign=spec.campaign,
        target=spec.target,
        spec_digest=spec.digest(),
        prices_as_of=min([facts.prices.as_of, *(offer.as_of for offer in facts.offers)]),
        offer=facts.offer,
        layout=shape,
        work=work_figures(spec, facts, shape.world_size),
        clock=guess.stages,
        deadline=spec.money.deadline,
        block=_block(with_step_time(spec, facts), guess.stages, guess.saving.checkpoint.every_steps),
        pilot=pilot_figures(spec, *(cost.rate_usd_per_hour(guess.lines, gpu=gpu) for gpu in (True, False))),
        cost=guess.lines,
        budget_usd=spec.money.budget_usd,
        totals=_totals(spec, guess, facts.environment.makes_cluster),
        tiers=guess.tiers,
        cadence=guess.saving.figures,
        checkpoint=guess.saving.checkpoint,
        checkpoint_derived=guess.saving.derived,
        makes_cluster=facts.environment.makes_cluster,
    )


def _block(spec: Spec, stages: tuple[StageTime, ...], every_steps: int) -> BlockTimes | None:
    ends = spec.nodes.block_end
    if ends is None:
        return None
    interval = timedelta(seconds=every_steps * seconds_of(spec))
    removal = ends - SCALE_DOWN
    return BlockTimes(
        ends=ends,
        nodes_until=removal,
        train_until=removal - interval - timedelta(seconds=float(seconds(stages, "archive"))),
    )


def _totals(spec: Spec, guess: Estimate, makes_cluster: bool) -> Totals:
    stages, lines = guess.stages, guess.lines
    running, idle = cost.rate_usd_per_hour(lines, gpu=True), cost.rate_usd_per_hour(lines, gpu=False)
    deadline_hours = spec.money.deadline.total_seconds() / 3600
    launch = min(launch_wait(spec), spec.money.deadline)
    launch_usd = cents(running * Decimal(launch.total_seconds()) / 3600)
    words = f"{duration.text(launch)} x {cents(running)} USD/h; then AWS ends the nodes of a driver that is gone"
    is_bounded = makes_cluster and spec.nodes.capacity not in RESERVED
    return Totals(
        clock=figure("clock", seconds(stages), "s", " + ".join(stage.stage for stage in stages)),
        gpu_clock=figure("clock to deadline", seconds(stages, *UNTIL_ARCHIVED), "s", " + ".join(UNTIL_ARCHIVED)),
        usd=figure("cost", cents(guess.usd), "USD", "sum of the lines"),
        usd_per_hour=figure("rate with GPU nodes", running, "USD/h", "sum of the hourly lines, builder gone", 4),
        usd_per_hour_idle=figure("rate without GPU nodes", idle, "USD/h", "sum of the lines that stay", 4),
        usd_at_deadline=figure(
            "cost at the deadline",
            guess.usd_at_deadline,
            "USD",
            f"{deadline_hours:g} h x {cents(running)} USD/h + teardown x {cents(idle)} USD/h + what bills by size",
        ),
        usd_of_dead_launch=figure("a launch left alone", launch_usd, "USD", words) if is_bounded else None,
    )
