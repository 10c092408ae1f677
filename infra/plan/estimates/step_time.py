"""Time of one step: the spec's, or what the MFU of published trainings makes of the accelerators' peak."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal, NamedTuple

from pydantic import Field

from infra.plan.catalogue.reading import read
from infra.plan.estimates import sizing
from infra.plan.estimates.figure import round_to
from infra.plan.facts import Facts
from infra.plan.layout import ranks_per_node
from infra.spec.campaign import Spec
from infra.spec.training import Training
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


def nearest_utilisation(accelerator: str, parameters: float, context: int, for_compiled: bool = False) -> Utilisation:
    """Return the row nearest in size and context: of this device if it has any, and compiled only if that is."""
    rows = [row for row in utilisations() if for_compiled or not row.compiled]
    rows = [row for row in rows if row.accelerator == accelerator] or rows
    return min(
        rows, key=lambda row: (row.distance(parameters, context), row.compiled != for_compiled, row.accelerators)
    )


UNMEASURED_S = 1.0
"""Stands in where nothing is known of a step's time."""
RECOMPUTED = 3 / 4
"""Part of the MFU that is left where each block computes its forward pass twice (arXiv 2205.05198)."""


class StepTime(NamedTuple):
    seconds: float
    formula: str


def seconds_of(spec: Spec) -> float:
    """Return the seconds of a step of a spec that has them, by itself or by `with_step_time`."""
    return spec.job.step_seconds_estimate or UNMEASURED_S


def with_step_time(spec: Spec, facts: Facts) -> Spec:
    """Return the spec with a step's time, derived if it has none."""
    if spec.training is None or spec.training.step_seconds_estimate is not None:
        return spec
    training = spec.training.model_copy(update={"step_seconds_estimate": step_time(spec, facts).seconds})
    return spec.model_copy(update={"training": training})


def step_time(spec: Spec, facts: Facts) -> StepTime:
    """Return a step's time and where it is from; the formula says `unmeasured` if no published training is like it."""
    training = spec.training
    if training is None or training.step_seconds_estimate is not None:
        return StepTime(seconds_of(spec), f"spec: {spec.runtime.step_time_field}")
    peak, instance, model = peak_tflops(training, facts), facts.instance, training.model
    if peak is None or instance is None or not facts.environment.hardware:
        return StepTime(UNMEASURED_S, "unmeasured: no dense peak is known of what computes here in this precision")
    count = sizing.parameters(model)
    if not any(row.parameters <= 2 * count for row in utilisations()):
        return StepTime(UNMEASURED_S, "unmeasured: no training of so small a model is published")
    is_compiled = training.compile == "layers"
    row = nearest_utilisation(instance.accelerator, count, model.context, is_compiled)
    is_alike = row.accelerator == instance.accelerator and row.compiled == is_compiled
    is_covered = is_alike and row.distance(count, model.context) <= ALIKE
    mfu, switches = row.mfu, ""
    if training.recompute.policy == "full":
        mfu, switches, is_covered = mfu * RECOMPUTED, " x 3/4 for recompute: full", False
    if training.optimizer.offload == "cpu":
        switches, is_covered = f"{switches}; offload is not in it", False
    world = ranks_per_node(spec, instance.accelerators) * spec.nodes.count
    flop = sizing.training_flops_per_token(model) * training.global_batch * model.context
    seconds = float(round_to(flop / (world * peak * 1e12 * mfu), 6))
    origin = row.source.says if is_covered else "unmeasured; nearest"
    formula = f"{flop:.4g} FLOP / ({world} accelerators x {peak:g} TFLOP/s x MFU); MFU {origin}: {row.words}{switches}"
    return StepTime(seconds or UNMEASURED_S, formula)


def peak_tflops(training: Training | None, facts: Facts) -> float | None:
    """Return one accelerator's dense peak in bfloat16, in which a workload is taken to compute; None: unknown."""
    if facts.instance is None or (training is not None and training.precision != "bfloat16"):
        return None
    return facts.instance.peak_bf16_tflops
