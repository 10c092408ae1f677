"""Check: every rule over spec and facts, all findings at once. Pure: no network, no clock, no file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from infra.plan.checks import capacity, money, nodes, placement, recovery, services, storage, training
from infra.plan.checks.finding import Case, Draft, Finding, Level, Rule, error
from infra.plan.facts import Facts
from infra.spec.campaign import SpecError, SpecFile

__all__ = ["RULES", "Finding", "Level", "check", "failed", "rule_name", "shape_findings"]

RULES: tuple[Rule, ...] = (
    *placement.RULES,
    *nodes.RULES,
    *capacity.RULES,
    *training.RULES,
    *storage.RULES,
    *services.RULES,
    *money.RULES,
    *recovery.RULES,
)
SHAPE_RULE = "shape"


def check(file: SpecFile, facts: Facts, today: date, *, whole: bool = True) -> tuple[Finding, ...]:
    """All findings in the order of the file; no rule hides another's.

    Of a spec and facts that are not whole, rules that look at what is missing find nothing.
    """
    case = Case(file.spec, facts, today)
    found = [
        Finding(
            level=draft.level,
            rule=rule_name(rule),
            file=file.path,
            line=file.line_of(draft.field) or 1,
            field=draft.field,
            message=draft.message,
            seen=draft.seen,
            cure=draft.cure,
        )
        for rule in RULES
        for draft in _drafts(rule, case, whole)
    ]
    return tuple(sorted(found, key=lambda finding: finding.line))


def _drafts(rule: Rule, case: Case, whole: bool) -> Iterator[Draft]:
    """What a rule finds; where the numbers are beyond arithmetic, that."""
    try:
        yield from rule(case)
    except (AttributeError, ValueError):  # a section that is not whole breaks what its own rules promise
        if whole:
            raise
    except ArithmeticError as problem:
        yield error(
            "training",
            "the campaign is too large to be weighed",
            seen=f"{rule_name(rule)}: {type(problem).__name__}",
            cure="look for a number with some zeros too many or too few",
        )


def shape_findings(refusal: SpecError) -> tuple[Finding, ...]:
    """The problems of a file that is no valid spec, as findings."""
    return tuple(
        Finding(
            level=Level.ERROR,
            rule=SHAPE_RULE,
            file=refusal.path,
            line=problem.line or 1,
            field=problem.field,
            message=problem.message,
            seen=problem.seen,
            cure=problem.cure,
        )
        for problem in refusal.problems
    )


def failed(findings: tuple[Finding, ...]) -> bool:
    """True when nothing may be started."""
    return any(finding.level is Level.ERROR for finding in findings)


def rule_name(rule: Rule) -> str:
    """`names_fit_aws` -> `names-fit-aws`."""
    return rule.__name__.replace("_", "-")  # type: ignore[attr-defined]
