"""Model FLOPs utilisation (MFU) that training runs reached, and the row nearest to a planned one."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

from pydantic import Field

from infra.plan.catalogue.reading import read
from trainer.contract.frozen import Frozen

ALIKE = math.log(2)
"""Longest distance at which a row counts as one of the planned training: a factor of two in size or context."""


class UtilisationSource(Frozen):
    name: str
    says: Literal["measured", "published", "computed"]
    """`computed`: here, from the tokens/s that it publishes."""


class Utilisation(Frozen):
    """One training run's MFU."""

    source: UtilisationSource
    accelerator: str
    accelerators: int = Field(ge=1)
    parameters: float = Field(gt=0)
    context: int = Field(ge=1)
    """Tokens of a sequence."""
    compiled: bool = False
    mfu: float = Field(gt=0, le=1)
    """Share of the dense peak in bfloat16."""

    @property
    def words(self) -> str:
        run = f"{self.parameters / 1e9:g}B, context {self.context}, {self.accelerators} x {self.accelerator}"
        return f"{self.mfu:.1%} of {run}{', compiled' if self.compiled else ''}: {self.source.name}"

    def distance(self, parameters: float, context: int) -> float:
        """Return the sum of the logarithms of both ratios, each without its sign."""
        return abs(math.log(self.parameters / parameters)) + abs(math.log(self.context / context))


@cache
def utilisations() -> tuple[Utilisation, ...]:
    """Return every row of the table. Raises `ValueError` for an MFU above 1, `KeyError` for a row without source."""
    content = read("utilisation")
    sources = content["sources"]
    return tuple(Utilisation.model_validate(row | {"source": sources[row["source"]]}) for row in content["rows"])


def nearest_utilisation(accelerator: str, parameters: float, context: int, compiled: bool = False) -> Utilisation:
    """Return the row nearest in size and context: of this device if it has any, and compiled only if that is."""
    rows = [row for row in utilisations() if compiled or not row.compiled]
    rows = [row for row in rows if row.accelerator == accelerator] or rows
    return min(rows, key=lambda row: (row.distance(parameters, context), row.compiled != compiled, row.accelerators))
