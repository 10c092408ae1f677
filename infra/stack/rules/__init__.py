"""Rules over the resource graph of a stack: run by `preview`, and by the tests over the whole catalogue. A rule is a
function; all findings are reported, never only the first."""

from __future__ import annotations

from collections.abc import Iterable

from infra.plan.checks.finding import Level, rule_name, rules_of
from infra.spec.campaign import Spec
from infra.stack.rules import access, network, nodes, pods, rights, safety
from infra.stack.rules.finding import Rule, RuleFinding
from infra.stack.rules.graph import Graph, Resource

RULES: tuple[Rule, ...] = rules_of("graph", safety, network, nodes, rights, access, pods)
_ORDER = (Level.ERROR, Level.WARNING, Level.INFO)

__all__ = ["RULES", "Graph", "Level", "Resource", "RuleFinding", "broken", "findings"]


def findings(graph: Graph, spec: Spec) -> tuple[RuleFinding, ...]:
    """Return all findings, the worst first."""
    found = [
        RuleFinding(
            level=draft.level,
            rule=rule_name(rule),
            resource=draft.place,
            message=draft.message,
            seen=draft.seen,
            cure=draft.cure,
        )
        for rule in RULES
        for draft in rule(graph, spec)
    ]
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.level)))


def broken(found: Iterable[RuleFinding]) -> bool:
    """Return whether any finding is an error."""
    return any(one.level is Level.ERROR for one in found)
