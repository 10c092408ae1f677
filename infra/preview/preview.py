"""A preview as a value: changes, costs, losses and the rules' findings. Reads only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from infra.aws.namesakes import refuse_namesake
from infra.engine import explain
from infra.engine.drift import Row, StackLook, short
from infra.engine.refusal import Refusal, refusals, standing
from infra.errors import CHANGED, UserError
from infra.kinds import kind_of_type
from infra.plan.checks.finding import Level
from infra.plan.estimates.cost import HOURS_PER_MONTH
from infra.plan.plan import Plan
from infra.preview.read_only import look_at_stacks, other_spec
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
    looks: tuple[StackLook, ...]
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
        return any(look.drifted or look.planned for look in self.looks)

    @property
    def exit_code(self) -> int:
        if broken(self.findings):
            return UserError.exit_code
        return CHANGED if self.differs else 0


def preview(context: Context, old_plan: Plan | None = None, *, look_inside: bool = True) -> Preview:
    """Return the preview. Raises `EngineFailed` where AWS does not answer, `UserError` for a campaign whose teardown
    has begun or whose name one in another region has.

    `old_plan`: the plan of the old spec, for the change of the bill. `look_inside`: also look into the cluster.
    """
    progress, name = standing(context), context.spec.campaign
    if progress.falling:
        raise UserError(
            "its teardown has begun: nothing more is made",
            seen=name,
            cure=f"`bivouac down {name}` continues it; a new campaign needs another name",
        )
    if context.store.get_json(SPEC) is None:
        refuse_namesake(context.account, name)
    looks = look_at_stacks(context, look_inside=look_inside)
    refusal_list = tuple(row for look in looks for row in refusals(look, progress, name))
    rule_findings = [finding for look in looks for finding in findings(look.asked, context.spec)]
    rule_findings += _of_life(context, looks, refusal_list)
    order = list(Level)[::-1]
    return Preview(
        campaign=name,
        looks=looks,
        refused=refusal_list,
        findings=tuple(sorted(rule_findings, key=lambda row: order.index(row.level))),
        costs=explain.cost_changes(looks, context.plan, len(context.spec.endpoint_services)),
        total_usd=sum((line.usd for line in context.plan.cost), Decimal(0)),
        changed=None if old_plan is None else plan_changes(old_plan, context.plan),
    )


def _of_life(context: Context, looks: tuple[StackLook, ...], refusal_list: tuple[Refusal, ...]) -> list[RuleFinding]:
    """Return findings on changes that a living campaign or stored state would not survive."""
    life_findings = []
    if (error := other_spec(context)) is not None:
        life_findings.append(RuleFinding(level=Level.ERROR, rule="spec_of_a_campaign_that_has_begun", resource="spec",
                             message=error.what, seen=str(error.seen), cure=error.cure or ""))  # fmt: skip
    for refusal in refusal_list:
        life_findings.append(RuleFinding(level=Level.ERROR, rule="campaign_that_has_begun", resource=refusal.row.title,
                             message=refusal.why, seen=_changes(refusal.row), cure=refusal.cure))  # fmt: skip
    urns = {refusal.row.urn for refusal in refusal_list}
    for row in (row for look in looks for row in look.planned):
        if loses(row) and row.urn not in urns:
            life_findings.append(RuleFinding(level=Level.WARNING, rule="state_is_lost", resource=row.title,
                                 message=f"it holds state and would be {row.verb}d", seen=_changes(row),
                                 cure="see that nothing in it is still needed"))  # fmt: skip
    return life_findings


def loses(row: Row) -> bool:
    """Return whether this change deletes or replaces what holds state."""
    return kind_of_type(row.kind).holds_state and row.verb in ("replace", "delete")


def _changes(row: Row) -> str:
    forcing = [change for change in row.changes if change.replaces] or list(row.changes)
    return (
        ", ".join(f"{change.path}: {short(change.before)} -> {short(change.after)}" for change in forcing)[:300]
        or row.verb
    )


def plan_changes(old_plan: Plan, new_plan: Plan) -> tuple[PlanChange, ...]:
    """Return the lines of the bill that differ, including new and dropped ones."""
    old, new = ({line.name: line for line in plan.cost} for plan in (old_plan, new_plan))
    changes = []
    for name in dict.fromkeys((*old, *new)):
        before_line, is_ = old.get(name), new.get(name)
        hourly = (is_.usd_per_hour if is_ else Decimal(0)) - (before_line.usd_per_hour if before_line else Decimal(0))
        usd = (before_line.usd if before_line else Decimal(0), is_.usd if is_ else Decimal(0))
        if hourly or usd[0] != usd[1]:
            changes.append(PlanChange(name, *usd, hourly * HOURS_PER_MONTH))
    return tuple(changes)


def as_facts(view: Preview) -> dict[str, Any]:
    """Return the preview as JSON."""
    return {
        "campaign": view.campaign,
        "ok": not broken(view.findings),
        **explain.as_facts(view.looks, view.refused),
        "findings": [row.model_dump(mode="json") for row in view.findings],
        "costs": [asdict(row) for row in view.costs],
        "total_usd": view.total_usd,
        "changed": None if view.changed is None else [asdict(row) for row in view.changed],
    }
