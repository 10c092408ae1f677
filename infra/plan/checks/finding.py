"""What a check finds, and what a rule looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from infra.plan.estimates.campaign import Estimate, estimate
from infra.plan.facts import Facts
from infra.plan.layout import ranks_per_node
from infra.spec.campaign import Spec

_LONGEST_SEEN = 400


class Level(StrEnum):
    INFO = "info"
    """Worth knowing; needs no action."""
    WARNING = "warning"
    """Will run, perhaps not as meant."""
    ERROR = "error"
    """Cannot work, or breaks a limit that the spec itself sets: nothing is started."""


class Finding(BaseModel):
    """One thing to tell, with its place in the spec file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: Level
    rule: str
    file: Path
    line: int
    """1-based; of the nearest section above a field that the file leaves out, else 1."""
    field: str
    message: str
    seen: str
    cure: str


@dataclass(frozen=True)
class Draft:
    """A finding as a rule makes it, before it gets its rule's name and its place."""

    level: Level
    field: str
    message: str
    seen: str
    cure: str


@dataclass(frozen=True)
class Case:
    """What rules look at: the spec, what was looked up, and today's date."""

    spec: Spec
    facts: Facts
    today: date

    @property
    def ranks_per_node(self) -> int | None:
        """None while the instance type is unknown and the spec does not say."""
        instance = self.facts.instance
        return ranks_per_node(self.spec, instance.accelerators if instance else 0) or None

    @property
    def world_size(self) -> int | None:
        ranks = self.ranks_per_node
        return None if ranks is None else ranks * self.spec.nodes.count

    @cached_property
    def estimate(self) -> Estimate | None:
        """None while the instance type is unknown: a guess about an unknown node would only mislead."""
        world = self.world_size
        return None if world is None or self.facts.instance is None else estimate(self.spec, self.facts, world)


Rule = Callable[[Case], Iterator[Draft]]
"""A rule yields nothing when all is well; its function name names it, its docstring says what it wants."""


def shown(seen: object) -> str:
    """One line of a bearable length, whatever was written."""
    text = "".join(sign if sign.isprintable() else "?" for sign in str(seen)).strip() or "nothing"
    return text if len(text) <= _LONGEST_SEEN else f"{text[: _LONGEST_SEEN - 3]}..."


def error(field: str, message: str, *, seen: object, cure: str) -> Draft:
    return Draft(Level.ERROR, field, message, shown(seen), cure)


def warning(field: str, message: str, *, seen: object, cure: str) -> Draft:
    return Draft(Level.WARNING, field, message, shown(seen), cure)


def info(field: str, message: str, *, seen: object, cure: str) -> Draft:
    return Draft(Level.INFO, field, message, shown(seen), cure)
