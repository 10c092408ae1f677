"""Rules over the resource graph of a stack: run by `preview`, and by the tests over the whole catalogue. A rule is a
function; all findings are reported, never only the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from infra.plan.checks.finding import Draft, Level, rule_name, rules_of
from infra.spec.campaign import Spec
from infra.stack.rules import access, network, nodes, pods, rights, safety
from infra.stack.rules.graph import Graph, GraphResource
from trainer.contract.frozen import Frozen


class RuleFinding(Frozen):
    """A finding in a resource graph."""

    level: Level
    rule: str
    resource: str
    """`LaunchTemplate gpu-nodes`; `stack` where a resource is missing."""
    message: str
    seen: str
    cure: str


Rule = Callable[[Graph, Spec], Iterator[Draft]]
"""Yields nothing when all is well; its function name is its name, its docstring its demand."""


RULES: tuple[Rule, ...] = rules_of("graph", safety, network, nodes, rights, access, pods)
_ORDER = (Level.ERROR, Level.WARNING, Level.INFO)

__all__ = ["RULES", "Graph", "GraphResource", "Level", "RuleFinding", "broken", "findings"]


def findings(graph: Graph, spec: Spec) -> tuple[RuleFinding, ...]:
    """Return all findings, the worst first."""
    results = [
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
    return tuple(sorted(results, key=lambda finding: _ORDER.index(finding.level)))


def broken(results: Iterable[RuleFinding]) -> bool:
    """Return whether any finding is an error."""
    return any(finding.level is Level.ERROR for finding in results)
