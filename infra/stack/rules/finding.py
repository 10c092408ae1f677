"""Findings of rules, and the form of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from infra.plan.checks.finding import Draft, Level
from infra.spec.campaign import Spec
from infra.stack.rules.graph import Graph
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
