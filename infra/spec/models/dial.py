"""One dial: the number of parameters or the compute budget derives model, batch, learning rate and steps.

What the spec gives itself is taken as it is, and the rest follows from it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.spec.models.named import resolve_model
from trainer.contract import ModelConfig
from trainer.contract.model.shape import parameters

TOKENS_PER_PARAMETER = 20
CHINCHILLA = "Hoffmann et al. 2022, arXiv 2203.15556"
KAPLAN = "Kaplan et al. 2020, arXiv 2001.08361"
DEEPSEEK = "DeepSeek LLM 2024, arXiv 2401.02954, equation 1, fitted from 1e17 to 2e19 FLOP"
LLAMA = "Touvron et al. 2023, arXiv 2302.13971"
GPT3 = "Brown et al. 2020, arXiv 2005.14165"
WIDTH_PER_LAYER = 100
"""Kaplan et al., figure 5: loss hardly depends on the form, (6 layers, 4288) being within 3 % of (48, 1600).
Models of the catalogue from 1B to 70B have between 80 and 128."""
_CONTEXT, _VOCABULARY = 2048, 32_000
_MOST_WARMUP = 2000
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class DialValue:
    """A value that follows from the dial."""

    field: str
    value: int | float
    unit: str
    formula: str
    source: str


def amount(value: Any) -> Any:
    """Return `1.3B` as a number; K, M, B and T are 10^3, 10^6, 10^9 and 10^12."""
    if isinstance(value, str) and value[-1:].upper() in _UNITS:
        try:
            return float(value[:-1]) * _UNITS[value[-1].upper()]
        except ValueError:
            pass
    return value


def complete(training: Any) -> Any:
    """Return the section `training` with all values that its dial derives and that it does not give itself."""
    if not isinstance(training, dict) or (dial := _dial(training)) is None:
        return training
    try:
        values = tuple(derive(*dial, training))
        result = {
            **training,
            "model": dict(_section(training.get("model"))),
            "optimizer": dict(training.get("optimizer") or {}),
        }
    except (ValueError, TypeError, OverflowError):
        return training  # a field of another type or a model that is refused: their own validation says so
    for value in values:
        *parents, name = value.field.split(".")
        section = result[parents[0]] if parents else result
        if section.get(name) is None:
            section[name] = value.value
    return result


def derived_values(training: Any) -> tuple[DialValue, ...]:
    """Return what the dial of a whole section `training` derives; nothing if it has none."""
    section = training.model_dump()
    dial = _dial(section)
    if dial is None:
        return ()
    # The section is complete: what it derived, it derives again from the same model.
    section["model"] = training.model
    return tuple(derive(*dial, section))


def _dial(section: dict[str, Any]) -> tuple[float | None, float | None] | None:
    size, compute = amount(section.get("parameters")), amount(section.get("compute"))
    try:
        numbers = (None if size is None else float(size), None if compute is None else float(compute))
    except (TypeError, ValueError):
        return None
    if (numbers[0] is None) == (numbers[1] is None) or not all(
        number is None or 1e3 <= number < 1e40 for number in numbers
    ):
        return None
    return numbers


def derive(size: float | None, compute: float | None, training: dict[str, Any]) -> Iterator[DialValue]:
    """Yield each value with its formula. `size`: parameters, `compute`: FLOP, one of them; `training`: the section."""
    parameter_count = size if size is not None else math.sqrt((compute or 0) / (6 * TOKENS_PER_PARAMETER))
    model = training.get("model")
    if not isinstance(model, ModelConfig):
        section = {name: value for name, value in _section(model).items() if value is not None}
        if not section.get("name"):
            base = {"context": _CONTEXT, "vocabulary": _VOCABULARY, **section}
            section = {**base, **_form(parameter_count, base), **section}
        model = ModelConfig.model_validate(resolve_model(section))
    count = parameters(model)
    if not model.name:
        yield from _shape(
            _form(parameter_count, {"context": model.context, "vocabulary": model.vocabulary}), parameter_count, compute
        )
    if compute is None:
        tokens = float(TOKENS_PER_PARAMETER * count)
        flop, formula = 6 * count * tokens, f"{TOKENS_PER_PARAMETER} x {count:,} parameters"
    else:
        tokens = compute / (6 * count)
        flop, formula = compute, f"{compute:.4g} FLOP / (6 x {count:,} parameters)"
    yield from _schedule(flop, tokens, formula, model.context, training)


def _shape(form: dict[str, int], parameter_count: float, compute: float | None) -> Iterator[DialValue]:
    aim = (
        f"{parameter_count:.4g} parameters"
        if compute is None
        else f"sqrt({compute:.4g} FLOP / 120) = {parameter_count:.4g}"
    )
    source = KAPLAN if compute is None else f"{CHINCHILLA}; {KAPLAN}"
    width, heads = form["width"], form["heads"]
    formula = f"nearest to {aim} with width about {WIDTH_PER_LAYER} x layers"
    yield DialValue("model.layers", form["layers"], "layers", formula, source)
    yield DialValue("model.width", width, "wide", f"of the same model: {heads} heads", KAPLAN)
    yield DialValue("model.heads", heads, "heads", f"{width} / {width // heads} a head", GPT3)
    yield DialValue("model.context", _CONTEXT, "tokens", "GPT-3's sequences", GPT3)
    yield DialValue("model.vocabulary", _VOCABULARY, "tokens", "Llama's size", LLAMA)


def _schedule(
    flop: float, tokens: float, flop_formula: str, context: int, section: dict[str, Any]
) -> Iterator[DialValue]:
    batch = 0.2920 * flop**0.3271
    sequence_count = 2 ** round(math.log2(max(1.0, batch / context)))
    sequences = section.get("global_batch") or sequence_count
    formula = f"0.2920 x {flop:.4g} FLOP^0.3271 = {batch:.4g} tokens / {context}, to the nearest power of two"
    yield DialValue("global_batch", sequence_count, "sequences", formula, DEEPSEEK)
    steps = max(1, math.ceil(tokens / (sequences * context)))
    formula = f"({flop_formula} = {tokens:.4g} tokens) / ({sequences} x {context})"
    yield DialValue("steps", steps, "steps", formula, CHINCHILLA)
    rate = float(f"{0.3118 * flop**-0.1250:.3g}")
    formula = f"0.3118 x {flop:.4g} FLOP^-0.1250"
    yield DialValue("optimizer.learning_rate", rate, "", formula, DEEPSEEK)
    optimizer = section.get("optimizer")
    choice = (
        optimizer.get("learning_rate") if isinstance(optimizer, dict) else getattr(optimizer, "learning_rate", None)
    )
    rate = choice if isinstance(choice, int | float) else rate
    yield DialValue("optimizer.minimum_learning_rate", float(f"{rate / 10:.3g}"), "", f"{rate:g} / 10", GPT3)
    if isinstance(choice := section.get("steps"), int):
        steps = choice
    formula = f"the lesser of {_MOST_WARMUP} and {steps} steps / 20"
    warmup = min(_MOST_WARMUP, steps // 20)
    yield DialValue(
        "optimizer.warmup_steps", warmup, "steps", formula, "DeepSeek LLM 2024, arXiv 2401.02954, section 2.3"
    )


def _section(model: Any) -> dict[str, Any]:
    return {"name": model} if isinstance(model, str) else dict(model or {})


def _form(parameter_count: float, base: dict[str, Any]) -> dict[str, int]:
    """Return layers, width and heads of the small decoder whose parameters are nearest to those wanted."""

    def nearest(layers: int, extra: int) -> tuple[float, dict[str, int]]:
        head = 128 if layers * WIDTH_PER_LAYER >= 1500 else 64 if layers * WIDTH_PER_LAYER >= 500 else 32
        heads = max(1, layers * WIDTH_PER_LAYER // head + extra)
        form = {"layers": layers, "width": heads * head, "heads": heads}
        return abs(math.log(parameters(ModelConfig.model_validate({**base, **form})) / parameter_count)), form

    return min(
        (nearest(layers, extra) for layers in range(1, 257) for extra in (0, 1)), key=lambda candidate: candidate[0]
    )[1]
