"""Amount of computation."""

from __future__ import annotations

from decimal import Decimal

from infra.plan.estimates import sizing
from infra.plan.estimates.figure import Figure, figure
from infra.plan.facts import Facts
from infra.spec.campaign import Spec

FORWARD_SHARE = 1 / 3
"""Cost of a forward pass as a share of a training step: the backward pass costs twice as much."""


def training_seconds(spec: Spec) -> float:
    return spec.training.steps * spec.training.step_seconds_estimate


def evaluation_seconds(spec: Spec, world_size: int) -> float:
    """Rank 0 evaluates alone, forward only: `evaluate_batches` micro batches every `evaluate_every` steps."""
    training = spec.training
    return -(-training.steps // training.evaluate_every) * one_evaluation_seconds(spec, world_size)


def one_evaluation_seconds(spec: Spec, world_size: int) -> float:
    """Return the time for which the other ranks wait in their next collective."""
    training = spec.training
    micro_step = training.step_seconds_estimate * training.micro_batch * world_size / training.global_batch
    return training.evaluate_batches * micro_step * FORWARD_SHARE


def work_figures(spec: Spec, facts: Facts, world_size: int) -> tuple[Figure, ...]:
    """Return parameters, tokens and time of the training, and the MFU that the step estimate implies."""
    training, model = spec.training, spec.training.model
    count, per_step = sizing.parameters(model), training.global_batch * model.context
    batch = f"global batch {training.global_batch} x context {model.context}"
    step = training.step_seconds_estimate
    hidden = sizing.feed_forward_width(model.width)
    found = [
        figure(
            "parameters",
            count,
            "parameters",
            f"{model.vocabulary} x {model.width} + {model.layers} x (4 x {model.width}^2 + 3 x {model.width} x {hidden}"
            f" + 2 x {model.width}) + {model.width}",
        ),
        figure("tokens per step", per_step, "tokens", batch),
        figure("steps", training.steps, "steps", "spec: training.steps"),
        figure("tokens", per_step * training.steps, "tokens", f"{per_step} tokens per step x {training.steps} steps"),
        figure("step time", step, "s", "spec: training.step_seconds_estimate"),
        figure("training time", training_seconds(spec), "s", f"{training.steps} steps x {step:g} s"),
        figure(
            "evaluation time",
            evaluation_seconds(spec, world_size),
            "s",
            f"{training.steps} steps / {training.evaluate_every} x {training.evaluate_batches} batches x 1/3 of"
            f" {step:g} s x {training.micro_batch} x {world_size} / {training.global_batch}",
        ),
    ]
    implied = implied_mfu(spec, facts, world_size)
    if implied is not None and facts.instance is not None:
        flops = sizing.training_flops_per_token(model)
        formula = (
            f"{flops:.4g} FLOP per token x {per_step} tokens / ({step:g} s x {world_size} accelerators x"
            f" {facts.instance.peak_bf16_tflops:g} TFLOP/s)"
        )
        found.append(figure("implied MFU", Decimal(str(round(100 * implied, 3))), "%", formula))
    return tuple(found)


def implied_mfu(spec: Spec, facts: Facts, world_size: int) -> float | None:
    """Return the share of the accelerators' peak that the step estimate implies; None if no peak is known."""
    if facts.instance is None or facts.instance.peak_bf16_tflops is None:
        return None
    tokens = spec.training.global_batch * spec.training.model.context
    done = sizing.training_flops_per_token(spec.training.model) * tokens
    return done / (spec.training.step_seconds_estimate * world_size * facts.instance.peak_bf16_tflops * 1e12)
