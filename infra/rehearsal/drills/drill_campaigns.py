"""The campaigns of drills: which faults strike the same one, in which order, and the spec that is rehearsed."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from infra.spec.drills.scenarios import scenarios

_SMALL: dict[str, Any] = {
    "data.max_files": 100, "data.max_epochs": 10_000,
    "training.model.width": 64, "training.model.context": 64, "training.model.vocabulary": 1024,
    "training.steps": 60_000, "training.evaluate_every": 60_000, "training.step_seconds_estimate": 0.05,
    "checkpoint.every_steps": 20,
    "recovery.restarts_in_place": 50, "recovery.process_restarts": 50, "recovery.node_replacements": 50,
    "recovery.repairs_per_hour": 100,
}  # fmt: skip
"""What differs from the stock rehearsal: it trains until all faults have struck, and no limit ends it before."""
_BETWEEN = 30
"""Steps by which each fault at least follows the one before."""


class Drill(NamedTuple):
    """One campaign with its faults, in the order of their strikes; those of the teardown are the last."""

    campaign: str
    names: tuple[str, ...]
    gaps: tuple[int, ...] = ()
    """Steps between the strikes, at least; empty: `_BETWEEN`."""

    def document(self) -> dict[str, Any]:
        """Return its spec as YAML content."""
        document: dict[str, Any] = yaml.safe_load(files("infra.campaigns").joinpath("rehearsal.yaml").read_text())
        gaps = self.gaps or (_BETWEEN,) * len(self.names)
        steps = itertools.accumulate(gaps, initial=_BETWEEN)
        next(steps)  # nothing strikes before the first checkpoint
        faults = [{"fault": name, "after_step": step} for name, step in zip(self.names, steps, strict=True)]
        needs = {path: value for name in self.names for path, value in scenarios()[name].spec.items()}
        for path, value in {**_SMALL, **needs, "campaign": self.campaign, "rehearsal.faults": faults}.items():
            section: dict[str, Any] = document
            *parents, field = path.split(".")
            for parent in parents:
                section = section.setdefault(parent, {})
            section[field] = copy.deepcopy(value)
        return {name: section for name, section in document.items() if section is not None}

    @property
    def training_numbers(self) -> list[int]:
        """Return the numbers of the faults that strike before the teardown."""
        return [number for number, name in enumerate(self.names) if scenarios()[name].stage == "training"]

    @property
    def ends_itself(self) -> bool:
        """Return whether a fault ends the campaign, so that nobody has to."""
        return any(scenarios()[name].ends_campaign for name in self.names)


def named_drills(names: Sequence[str], seed: int, prefix: str = "drill") -> list[Drill]:
    """Return the campaigns with these faults: one for all of a group after which it goes on, in an order drawn by the
    seed, and in the nameless group's those that strike its teardown; one more for each fault that ends its campaign."""
    chance, drills = random.Random(seed), list[Drill]()
    for group in dict.fromkeys(["", *(scenarios()[name].group for name in names)]):
        of_group = [name for name in names if scenarios()[name].group == group]
        training_names = [name for name in of_group if scenarios()[name].goes_on]
        shared_names = chance.sample(training_names, k=len(training_names))
        shared_names += [name for name in of_group if scenarios()[name].stage == "teardown"]
        if shared_names:
            drills.append(Drill(f"{prefix}-{group or 'named'}", tuple(shared_names)))
    ending_names = [name for name in names if scenarios()[name].ends_campaign]
    return drills + [Drill(f"{prefix}-end{number}", (name,)) for number, name in enumerate(ending_names, 1)]


def random_drill(count: int, seed: int, prefix: str = "drill") -> Drill:
    """Return a campaign with `count` faults that it survives, drawn by the seed, with gaps as a Poisson process has."""
    chance = random.Random(seed)
    gaps = tuple(1 + round(chance.expovariate(1 / _BETWEEN)) for _ in range(count))
    names = [name for name, scenario in scenarios().items() if scenario.goes_on and not scenario.group]
    return Drill(f"{prefix}-random", tuple(chance.choices(names, k=count)), gaps)
