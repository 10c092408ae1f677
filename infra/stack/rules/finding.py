"""Findings of rules, and the form of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infra.plan.checks.finding import Level, shown
from infra.spec.campaign import Spec
from infra.stack.rules.graph import Graph, Resource
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


@dataclass(frozen=True)
class Draft:
    """A finding before it gets its rule's name."""

    level: Level
    resource: str
    message: str
    seen: str
    cure: str


Rule = Callable[[Graph, Spec], Iterator[Draft]]
"""Yields nothing when all is well; its function name is its name, its docstring its demand."""


def error(resource: Resource | None, message: str, *, seen: object, cure: str) -> Draft:
    return Draft(Level.ERROR, _title(resource), message, shown(seen), cure)


def warning(resource: Resource | None, message: str, *, seen: object, cure: str) -> Draft:
    return Draft(Level.WARNING, _title(resource), message, shown(seen), cure)


def info(resource: Resource | None, message: str, *, seen: object, cure: str) -> Draft:
    return Draft(Level.INFO, _title(resource), message, shown(seen), cure)


def _title(resource: Resource | None) -> str:
    return "stack" if resource is None else str(resource)
