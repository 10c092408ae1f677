"""The whole estimate of a campaign, used by check and plan."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from infra.plan.estimates.clock import StageTime, borrowed, clock
from infra.plan.estimates.cost import CostLine, cost, hours, total_usd, usd_at_deadline
from infra.plan.estimates.preparing import preparing_time
from infra.plan.estimates.saving import Saving, saving
from infra.plan.estimates.step_time import with_step_time
from infra.plan.estimates.storage import TierSize, tiers
from infra.plan.facts import Facts
from infra.spec.campaign import Spec


@dataclass(frozen=True)
class Estimate:
    saving: Saving
    tiers: tuple[TierSize, ...]
    stages: tuple[StageTime, ...]
    lines: tuple[CostLine, ...]
    usd: Decimal
    usd_at_deadline: Decimal

    def tier(self, name: str) -> TierSize | None:
        """Return a tier; None for the nodes' own of a workload, which does not use it."""
        return next((tier for tier in self.tiers if tier.name == name), None)


def estimate(spec: Spec, facts: Facts, world_size: int) -> Estimate:
    spec = with_step_time(spec, facts)
    cadence = saving(spec, facts, world_size)
    stages = clock(spec, cadence, world_size, preparing_time(spec, facts))
    stages = stages if facts.environment.makes_cluster else borrowed(stages)
    lines = cost(spec, facts, stages)
    return Estimate(
        saving=cadence,
        tiers=tiers(spec, facts, cadence.checkpoint),
        stages=stages,
        lines=lines,
        usd=total_usd(lines),
        usd_at_deadline=usd_at_deadline(spec, lines, hours(stages, "teardown")),
    )
