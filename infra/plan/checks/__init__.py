"""Check: apply every rule to spec and facts and return all findings at once. Pure: no network, clock or file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from infra.plan.checks import (
    builders,
    capacity,
    engine,
    money,
    nccl,
    network,
    nodes,
    people,
    placement,
    recovery,
    services,
    storage,
    training,
    workload,
)
from infra.plan.checks.finding import Case, Draft, Finding, Level, Rule, error
from infra.plan.facts import Facts
from infra.spec.campaign import Spec, SpecError, SpecFile

__all__ = ["RULES", "Finding", "Level", "check", "failed", "rule_name", "shape_findings"]

RULES: tuple[Rule, ...] = (
    *placement.RULES,
    *network.RULES,
    *builders.RULES,
    *nodes.RULES,
    *capacity.RULES,
    *training.RULES,
    *engine.RULES,
    *workload.RULES,
    *nccl.RULES,
    *storage.RULES,
    *services.RULES,
    *money.RULES,
    *recovery.RULES,
    *people.RULES,
)
SHAPE_RULE = "shape"


def check(file: SpecFile, facts: Facts, today: date, *, whole: bool = True) -> tuple[Finding, ...]:
    """Return all findings in the order of the file; no rule hides another's findings.

    If spec and facts are not `whole`, rules that read a missing part find nothing.
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
        for rule in _rules(file.spec)
        for draft in _drafts(rule, case, whole)
    ]
    return tuple(sorted(found, key=lambda finding: finding.line))


def _rules(spec: Spec) -> tuple[Rule, ...]:
    """Leave out the rules about what the spec does not have: the built-in trainer, or a workload."""
    built_in = training.RULES + engine.RULES
    absent = built_in if getattr(spec, "workload", None) is not None else workload.RULES
    return tuple(rule for rule in RULES if rule not in absent)


def _drafts(rule: Rule, case: Case, whole: bool) -> Iterator[Draft]:
    """Yield a rule's drafts; an overflow of its arithmetic becomes a finding."""
    try:
        yield from rule(case)
    except (AttributeError, ValueError):  # a rule may read a field that an incomplete spec lacks
        if whole:
            raise
    except ArithmeticError as problem:
        yield error(
            "training",
            "the campaign has a number that is too large",
            seen=f"{rule_name(rule)}: {type(problem).__name__}",
            cure="look for a number with some zeros too many or too few",
        )


def shape_findings(refusal: SpecError) -> tuple[Finding, ...]:
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
    """Return True if nothing may be started."""
    return any(finding.level is Level.ERROR for finding in findings)


def rule_name(rule: Rule) -> str:
    """Return the rule's name: `names_fit_aws` -> `names-fit-aws`."""
    return rule.__name__.replace("_", "-")  # type: ignore[attr-defined]
