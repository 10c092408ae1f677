"""A preview as a value: changes, costs, losses and the rules' findings. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from infra.aws.namesakes import refuse_namesake
from infra.engine import explain
from infra.engine.drift import Look, Row, short
from infra.engine.refusal import Refusal, refusals, standing
from infra.errors import CHANGED, UserError
from infra.kinds import kind_of_type
from infra.plan.checks.finding import Level
from infra.plan.estimates.cost import HOURS_PER_MONTH
from infra.plan.plan import Plan
from infra.preview.looking import look_at_stacks, other_spec
from infra.session.context import Context
from infra.session.session import SPEC
from infra.stack.rules import RuleFinding, broken, findings


@dataclass(frozen=True)
class PlanChange:
    """One line of the bill before and after a change of the spec."""

    what: str
    before_usd: Decimal
    """Cost of the campaign as planned, with the old spec."""
    after_usd: Decimal
    month_usd: Decimal
    """Change of a month of 730 h."""


@dataclass(frozen=True)
class Preview:
    campaign: str
    looks: tuple[Look, ...]
    refused: tuple[Refusal, ...]
    findings: tuple[RuleFinding, ...]
    """Findings of the rules and the refusals, the worst first."""
    costs: tuple[explain.CostChange, ...]
    total_usd: Decimal
    """Cost of the campaign as planned."""
    changed: tuple[PlanChange, ...] | None
    """Changes against the old spec; None if none was given."""

    @property
    def differs(self) -> bool:
        return any(one.drifted or one.planned for one in self.looks)

    @property
    def exit_code(self) -> int:
        if broken(self.findings):
            return UserError.exit_code
        return CHANGED if self.differs else 0


def preview(context: Context, before: Plan | None = None, *, inside: bool = True) -> Preview:
    """Return the preview. Raises `EngineFailed` where AWS does not answer, `UserError` for a campaign whose teardown
    has begun or whose name one in another region has.

    `before`: the plan of the old spec, for the change of the bill. `inside`: also look into the cluster.
    """
    where, name = standing(context), context.spec.campaign
    if where.falling:
        raise UserError(
            "its teardown has begun: nothing more is made",
            seen=name,
            cure=f"`bivouac down {name}` continues it; a new campaign needs another name",
        )
    if context.store.get_json(SPEC) is None:
        refuse_namesake(context.account, name)
    looks = look_at_stacks(context, inside=inside)
    refused = tuple(one for each in looks for one in refusals(each, where, name))
    found = [finding for each in looks for finding in findings(each.asked, context.spec)]
    found += _of_life(context, looks, refused)
    order = list(Level)[::-1]
    return Preview(
        campaign=name,
        looks=looks,
        refused=refused,
        findings=tuple(sorted(found, key=lambda one: order.index(one.level))),
        costs=explain.cost_changes(looks, context.plan, len(context.spec.endpoint_services)),
        total_usd=sum((line.usd for line in context.plan.cost), Decimal(0)),
        changed=None if before is None else plan_changes(before, context.plan),
    )


def _of_life(context: Context, looks: tuple[Look, ...], refused: tuple[Refusal, ...]) -> list[RuleFinding]:
    """Return findings on changes that a living campaign or stored state would not survive."""
    found = []
    if (other := other_spec(context)) is not None:
        found.append(RuleFinding(level=Level.ERROR, rule="spec_of_a_campaign_that_has_begun", resource="spec",
                             message=other.what, seen=str(other.seen), cure=other.cure or ""))  # fmt: skip
    for one in refused:
        found.append(RuleFinding(level=Level.ERROR, rule="campaign_that_has_begun", resource=one.row.title,
                             message=one.why, seen=_changes(one.row), cure=one.cure))  # fmt: skip
    told = {one.row.urn for one in refused}
    for row in (row for each in looks for row in each.planned):
        if loses(row) and row.urn not in told:
            found.append(RuleFinding(level=Level.WARNING, rule="state_is_lost", resource=row.title,
                                 message=f"it holds state and would be {row.verb}d", seen=_changes(row),
                                 cure="see that nothing in it is still needed"))  # fmt: skip
    return found


def loses(row: Row) -> bool:
    """Return whether this change deletes or replaces what holds state."""
    return kind_of_type(row.kind).holds_state and row.verb in ("replace", "delete")


def _changes(row: Row) -> str:
    forcing = [one for one in row.changes if one.replaces] or list(row.changes)
    return ", ".join(f"{one.path}: {short(one.before)} -> {short(one.after)}" for one in forcing)[:300] or row.verb


def plan_changes(before: Plan, after: Plan) -> tuple[PlanChange, ...]:
    """Return the lines of the bill that differ, including new and dropped ones."""
    old, new = ({line.name: line for line in plan.cost} for plan in (before, after))
    found = []
    for name in dict.fromkeys((*old, *new)):
        was, is_ = old.get(name), new.get(name)
        hourly = (is_.usd_per_hour if is_ else Decimal(0)) - (was.usd_per_hour if was else Decimal(0))
        usd = (was.usd if was else Decimal(0), is_.usd if is_ else Decimal(0))
        if hourly or usd[0] != usd[1]:
            found.append(PlanChange(name, *usd, hourly * HOURS_PER_MONTH))
    return tuple(found)


def as_facts(seen: Preview) -> dict[str, Any]:
    """Return the preview as JSON."""
    return {
        "campaign": seen.campaign,
        "ok": not broken(seen.findings),
        **explain.as_facts(seen.looks, seen.refused),
        "findings": [one.model_dump(mode="json") for one in seen.findings],
        "costs": [
            {"what": one.what, "usd_per_hour": one.usd_per_hour, "usd_per_month": one.usd_per_month,
             "usd_per_campaign": one.usd_per_campaign} for one in seen.costs
        ],
        "total_usd": seen.total_usd,
        "changed": None if seen.changed is None else [
            {"what": one.what, "before_usd": one.before_usd, "after_usd": one.after_usd,
             "month_usd": one.month_usd} for one in seen.changed
        ],
    }  # fmt: skip
