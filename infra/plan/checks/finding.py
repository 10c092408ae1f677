"""Types of the rules: a rule's input, and its findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from infra.plan.estimates.campaign import Estimate, estimate
from infra.plan.estimates.step_time import seconds_of
from infra.plan.facts import Facts
from infra.plan.layout import ranks_per_node
from infra.spec.campaign import Spec
from infra.spec.workload.built_in import BuiltIn
from infra.spec.workload.workload import Workload
from trainer.contract import Layout
from trainer.contract.frozen import Frozen

_LONGEST_SEEN = 400


class Level(StrEnum):
    INFO = "info"
    """For information; no action is needed."""
    WARNING = "warning"
    """The campaign will run, perhaps not as meant."""
    ERROR = "error"
    """The campaign cannot work or breaks a limit of the spec; nothing is started."""


class Finding(Frozen):
    """One result of a check, with its place in the spec file."""

    level: Level
    rule: str
    file: Path
    line: int
    """1-based line of the field, else of the nearest section above it, else 1."""
    field: str
    message: str
    seen: str
    cure: str


@dataclass(frozen=True)
class Draft:
    """A finding as a rule makes it, without the rule's name and the place in the file."""

    level: Level
    place: str
    """Field of the spec, or resource of the stack."""
    message: str
    seen: str
    cure: str


@dataclass(frozen=True)
class Case:
    """Input of a rule: the spec, the facts, and today's date."""

    spec: Spec
    facts: Facts
    today: date

    @property
    def job(self) -> Workload | BuiltIn:
        """The section `workload` as the file has it, or the built-in trainer's answers."""
        return self.spec.file_runtime

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks of one node; None if the instance type is unknown and the spec has no number."""
        instance = self.facts.instance
        return ranks_per_node(self.spec, instance.accelerators if instance else 0) or None

    @property
    def world_size(self) -> int | None:
        ranks = self.ranks_per_node
        return None if ranks is None else ranks * self.spec.nodes.count

    @property
    def data_ranks(self) -> int | None:
        """Ranks, or groups of ranks, that read different sequences."""
        training, world = self.spec.training, self.world_size
        return world if world is None or training is None else Layout.of(training.parallel, world).data

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return seconds_of(self.spec)

    @cached_property
    def estimate(self) -> Estimate | None:
        """The campaign's estimate; None for an unknown instance type, for which it would mislead."""
        world = self.world_size
        return None if world is None or self.facts.instance is None else estimate(self.spec, self.facts, world)


Rule = Callable[[Case], Iterator[Draft]]
"""Yields nothing if all is well. The function's name is the rule's name; its docstring states the requirement."""


def rules_of(parameter: str, *modules: ModuleType) -> tuple[Any, ...]:
    """Return the rules of modules: their own public functions whose first parameter has this name."""
    return tuple(
        function
        for module in modules
        for name, function in vars(module).items()
        if isinstance(function, FunctionType) and function.__module__ == module.__name__
        if not name.startswith("_") and next(iter(function.__annotations__)) == parameter
    )


def rule_name(rule: Callable[..., Any]) -> str:
    """Return the rule's name: `one_bandwidth_floor` -> `one-bandwidth-floor`."""
    return rule.__name__.replace("_", "-")


def one_line(value: object) -> str:
    """Return printable text in one line of limited length."""
    text = "".join(sign if sign.isprintable() else "?" for sign in str(value)).strip() or "nothing"
    return text if len(text) <= _LONGEST_SEEN else f"{text[: _LONGEST_SEEN - 3]}..."


def error(place: object, message: str, *, seen: object, cure: str) -> Draft:
    return Draft(Level.ERROR, str(place), message, one_line(seen), cure)


def warning(place: object, message: str, *, seen: object, cure: str) -> Draft:
    return Draft(Level.WARNING, str(place), message, one_line(seen), cure)


def info(place: object, message: str, *, seen: object, cure: str) -> Draft:
    return Draft(Level.INFO, str(place), message, one_line(seen), cure)
