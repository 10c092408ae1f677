"""Amount of computation."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from infra.plan.estimates import sizing
from infra.plan.estimates.figure import Figure, figure
from infra.plan.estimates.step_time import peak_tflops, seconds_of, step_time, with_step_time
from infra.plan.estimates.zero import zero_figures
from infra.plan.facts import Facts
from infra.spec.campaign import Spec, Training, Workload
from infra.spec.models import dial
from trainer.contract import Layout
from trainer.contract.model.shape import parameters_formula

FORWARD_SHARE = 1 / 3
"""Cost of a forward pass as a share of a training step: the backward pass costs twice as much."""


def training_seconds(spec: Spec) -> float:
    return spec.job.steps * seconds_of(spec)


def evaluation_seconds(spec: Spec, world_size: int) -> float:
    """Rank 0 evaluates alone, forward only: `evaluate_batches` micro batches every `evaluate_every` steps."""
    every_steps = spec.job.evaluate_every
    return 0.0 if every_steps is None else -(-spec.job.steps // every_steps) * one_evaluation_seconds(spec, world_size)


def one_evaluation_seconds(spec: Spec, world_size: int) -> float:
    """Return the time for which the other ranks wait in their next collective."""
    training = spec.training
    if training is None:
        return 0.0
    groups = Layout.of(training.parallel, world_size).data
    micro_step = seconds_of(spec) * training.micro_batch * groups / training.global_batch
    return training.evaluate_batches * micro_step * FORWARD_SHARE


def work_figures(spec: Spec, facts: Facts, world_size: int) -> tuple[Figure, ...]:
    """Return parameters, tokens and time of the training, and the MFU that the step estimate implies."""
    training, origin, spec = spec.training, step_time(spec, facts).formula, with_step_time(spec, facts)
    if training is None:
        figures = _length(spec, origin)
    else:
        figures = _of_model(spec, training, world_size, origin)
        figures += zero_figures(training, facts.instance, spec.nodes.count, world_size // spec.nodes.count)
    mfu, peak = implied_mfu(spec, facts, world_size), peak_tflops(training, facts)
    if mfu is not None and peak is not None:
        step = seconds_of(spec)
        formula = f"{_flop_formula(spec)} / ({step:g} s x {world_size} accelerators x {peak:g} TFLOP/s)"
        figures.append(figure("implied MFU", Decimal(str(round(100 * mfu, 3))), "%", formula))
    return tuple(figures)


def _length(spec: Spec, step_origin: str) -> list[Figure]:
    steps, step = spec.job.steps, seconds_of(spec)
    return [
        figure("steps", steps, "steps", "spec: workload.estimates.steps"),
        figure("step time", step, "s", step_origin, digits=6),
        figure("training time", training_seconds(spec), "s", f"{steps} steps x {step:g} s"),
    ]


def _of_model(spec: Spec, training: Training, world_size: int, step_origin: str) -> list[Figure]:
    model, groups = training.model, Layout.of(training.parallel, world_size).data
    count, per_step = sizing.parameters(model), training.global_batch * model.context
    batch = f"global batch {training.global_batch} x context {model.context}"
    step, flop = seconds_of(spec), sizing.training_flops_per_token(model)
    return [
        *_of_dial(training),
        figure("parameters", count, "parameters", parameters_formula(model)),
        figure("FLOP per token", flop, "FLOP", sizing.flops_formula(model)),
        figure("tokens per step", per_step, "tokens", batch),
        figure("steps", training.steps, "steps", "spec: training.steps"),
        figure("tokens", per_step * training.steps, "tokens", f"{per_step} tokens per step x {training.steps} steps"),
        figure("step time", step, "s", step_origin, digits=6),
        figure("training time", training_seconds(spec), "s", f"{training.steps} steps x {step:g} s"),
        figure(
            "evaluation time",
            evaluation_seconds(spec, world_size),
            "s",
            f"{training.steps} steps / {training.evaluate_every} x {training.evaluate_batches} batches x 1/3 of"
            f" {step:g} s x {training.micro_batch} x {groups} / {training.global_batch}",
        ),
    ]


def _of_dial(training: Training) -> list[Figure]:
    """Return what the dial derives, with source; of a value that the spec gives itself, what it would have been."""
    figures: list[Figure] = []
    for value in dial.derived_values(training):
        setting: Any = training
        for name in value.field.split("."):
            setting = getattr(setting, name)
        difference = "" if setting == value.value else f"; the spec has {setting:g} instead"
        figures.append(
            figure(
                f"dial: {value.field}",
                value.value,
                value.unit,
                f"{value.formula} ({value.source}){difference}",
                digits=8,
            )
        )
    return figures


def _flop_formula(spec: Spec) -> str:
    training = spec.training
    if training is None:
        return "spec: workload.estimates.tflop_per_step"
    per_step = training.global_batch * training.model.context
    return f"{sizing.training_flops_per_token(training.model):.4g} FLOP per token x {per_step} tokens"


def _flops_per_step(spec: Spec) -> float | None:
    job = spec.job
    if isinstance(job, Workload):
        return None if job.estimates.tflop_per_step is None else job.estimates.tflop_per_step * 1e12
    return sizing.training_flops_per_token(job.model) * job.global_batch * job.model.context


def implied_mfu(spec: Spec, facts: Facts, world_size: int) -> float | None:
    """Return the share of the accelerators' peak that the step estimate implies; None if no peak is known."""
    peak, flops = peak_tflops(spec.training, facts), _flops_per_step(spec)
    if peak is None or flops is None:
        return None
    return flops / (seconds_of(spec) * world_size * peak * 1e12)
