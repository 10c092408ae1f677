"""Check: apply every rule to spec and facts and return all findings at once. Pure: no network, clock or file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from infra.plan.checks import (
    builders,
    capacity,
    engine,
    fewer_nodes,
    money,
    mounts,
    nccl,
    network,
    nodes,
    people,
    placement,
    recovery,
    services,
    source,
    standing,
    storage,
    training,
    variables,
    workload,
)
from infra.plan.checks.finding import Case, Draft, Finding, Level, Rule, error, rule_name, rules_of
from infra.plan.estimates.step_time import with_step_time
from infra.plan.facts import Facts
from infra.spec.campaign import Spec, SpecError, SpecFile
from infra.spec.standing import STANDING

__all__ = ["RULES", "WORKLOAD_RULES", "Finding", "Level", "check", "failed", "shape_findings"]

BUILT_IN_RULES: tuple[Rule, ...] = rules_of("case", training, engine)
WORKLOAD_RULES: tuple[Rule, ...] = rules_of("case", workload, mounts, variables, source)
RULES: tuple[Rule, ...] = (
    *rules_of("case", placement, network, builders, nodes, capacity),
    *BUILT_IN_RULES,
    *WORKLOAD_RULES,
    *rules_of("case", nccl, storage, services, money, recovery, fewer_nodes, people),
)
STANDING_RULES: tuple[Rule, ...] = (
    *rules_of("case", standing),
    nodes.known_instance_type,
    nodes.supported_accelerator,
    nodes.ranks_per_accelerator,
    nodes.preflight_profile,
    nodes.one_bandwidth_floor,
    *BUILT_IN_RULES,
    workload.workload_source,
    workload.script_source,
    workload.evaluation_programs,
    workload.evaluation_of_export,
    workload.mpirun_in_image,
    *rules_of("case", variables, source),
    nccl.documented_nccl_settings,
    storage.shared_tier_size,
    storage.shared_tier_speed,
    storage.save_overhead,
    storage.emergency_save_time,
    storage.shared_checkpoint,
    storage.older_checkpoint,
    money.cost_within_budget,
    money.cost_at_deadline,
    money.deadline_margin,
    *rules_of("case", fewer_nodes),
    recovery.timeout_order,
    recovery.timeout_length,
    recovery.plausible_step_time,
    recovery.loss_limits,
)
"""The rules of an existing cluster: its own, and those that need nothing of AWS."""
RULES_OF: dict[str, tuple[Rule, ...]] = {STANDING: STANDING_RULES}
"""Target -> its rules; `RULES` where it is not named."""
SHAPE_RULE = "shape"


def check(file: SpecFile, facts: Facts, today: date, *, complete: bool = True) -> tuple[Finding, ...]:
    """Return all findings in the order of the file; no rule hides another's findings.

    If spec and facts are not `complete`, rules that read a missing part find nothing.
    """
    case = Case(with_step_time(file.spec, facts) if complete else file.spec, facts, today)
    findings = [
        Finding(
            level=draft.level,
            rule=rule_name(rule),
            file=file.path,
            line=file.line_of(draft.place) or 1,
            field=draft.place,
            message=draft.message,
            seen=draft.seen,
            cure=draft.cure,
        )
        for rule in _rules(file.spec)
        for draft in _drafts(rule, case, complete)
    ]
    return tuple(sorted(findings, key=lambda finding: finding.line))


def _rules(spec: Spec) -> tuple[Rule, ...]:
    """Leave out the rules about what the spec does not have: the built-in trainer, or a workload."""
    absent = BUILT_IN_RULES if getattr(spec, "workload", None) is not None else WORKLOAD_RULES
    return tuple(rule for rule in RULES_OF.get(getattr(spec, "target", ""), RULES) if rule not in absent)


def _drafts(rule: Rule, case: Case, complete: bool) -> Iterator[Draft]:
    """Yield a rule's drafts; an overflow of its arithmetic becomes a finding."""
    try:
        yield from rule(case)
    except (AttributeError, ValueError):  # a rule may read a field that an incomplete spec lacks
        if complete:
            raise
    except ArithmeticError as problem:
        message = "the campaign has a number that is too large"
        cure = "look for a number with some zeros too many or too few"
        yield error("training", message, seen=f"{rule_name(rule)}: {type(problem).__name__}", cure=cure)


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
