"""One dial: the number of parameters or the compute budget derives model, batch, learning rate and steps.

What the spec gives itself is taken as it is, and the rest follows from it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.spec.models.named import resolved
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
class Derived:
    """A value that follows from the dial."""

    field: str
    value: int | float
    unit: str
    formula: str
    source: str


def amount(given: Any) -> Any:
    """Return `1.3B` as a number; K, M, B and T are 10^3, 10^6, 10^9 and 10^12."""
    if isinstance(given, str) and given[-1:].upper() in _UNITS:
        try:
            return float(given[:-1]) * _UNITS[given[-1].upper()]
        except ValueError:
            pass
    return given


def filled(given: Any) -> Any:
    """Return the section `training` with all values that its dial derives and that it does not give itself."""
    if not isinstance(given, dict) or (turned := _turned(given)) is None:
        return given
    try:
        found = tuple(derive(*turned, given))
        whole = {**given, "model": dict(_section(given.get("model"))), "optimizer": dict(given.get("optimizer") or {})}
    except (ValueError, TypeError, OverflowError):
        return given  # a field of another type or a model that is refused: their own validation says so
    for one in found:
        *above, name = one.field.split(".")
        section = whole[above[0]] if above else whole
        if section.get(name) is None:
            section[name] = one.value
    return whole


def of(training: Any) -> tuple[Derived, ...]:
    """Return what the dial of a whole section `training` derives; nothing if it has none."""
    told = training.model_dump()
    turned = _turned(told)
    if turned is None:
        return ()
    # The section is complete: what it derived, it derives again from the same model.
    told["model"] = training.model
    return tuple(derive(*turned, told))


def _turned(given: dict[str, Any]) -> tuple[float | None, float | None] | None:
    size, compute = amount(given.get("parameters")), amount(given.get("compute"))
    try:
        both = (None if size is None else float(size), None if compute is None else float(compute))
    except (TypeError, ValueError):
        return None
    if (both[0] is None) == (both[1] is None) or not all(one is None or 1e3 <= one < 1e40 for one in both):
        return None
    return both


def derive(size: float | None, compute: float | None, given: dict[str, Any]) -> Iterator[Derived]:
    """Yield each value with its formula. `size`: parameters, `compute`: FLOP, one of them; `given`: the section."""
    wanted = size if size is not None else math.sqrt((compute or 0) / (6 * TOKENS_PER_PARAMETER))
    model = given.get("model")
    if not isinstance(model, ModelConfig):
        section = {name: value for name, value in _section(model).items() if value is not None}
        if not section.get("name"):
            base = {"context": _CONTEXT, "vocabulary": _VOCABULARY, **section}
            section = {**base, **_form(wanted, base), **section}
        model = ModelConfig.model_validate(resolved(section))
    count = parameters(model)
    if not model.name:
        yield from _shape(_form(wanted, {"context": model.context, "vocabulary": model.vocabulary}), wanted, compute)
    if compute is None:
        tokens = float(TOKENS_PER_PARAMETER * count)
        spent, how = 6 * count * tokens, f"{TOKENS_PER_PARAMETER} x {count:,} parameters"
    else:
        tokens = compute / (6 * count)
        spent, how = compute, f"{compute:.4g} FLOP / (6 x {count:,} parameters)"
    yield from _schedule(spent, tokens, how, model.context, given)


def _shape(form: dict[str, int], wanted: float, compute: float | None) -> Iterator[Derived]:
    aim = f"{wanted:.4g} parameters" if compute is None else f"sqrt({compute:.4g} FLOP / 120) = {wanted:.4g}"
    why = KAPLAN if compute is None else f"{CHINCHILLA}; {KAPLAN}"
    width, heads = form["width"], form["heads"]
    how = f"nearest to {aim} with width about {WIDTH_PER_LAYER} x layers"
    yield Derived("model.layers", form["layers"], "layers", how, why)
    yield Derived("model.width", width, "wide", f"of the same model: {heads} heads", KAPLAN)
    yield Derived("model.heads", heads, "heads", f"{width} / {width // heads} a head", GPT3)
    yield Derived("model.context", _CONTEXT, "tokens", "GPT-3's sequences", GPT3)
    yield Derived("model.vocabulary", _VOCABULARY, "tokens", "Llama's size", LLAMA)


def _schedule(spent: float, tokens: float, how: str, context: int, given: dict[str, Any]) -> Iterator[Derived]:
    batch = 0.2920 * spent**0.3271
    derived = 2 ** round(math.log2(max(1.0, batch / context)))
    sequences = given.get("global_batch") or derived
    formula = f"0.2920 x {spent:.4g} FLOP^0.3271 = {batch:.4g} tokens / {context}, to the nearest power of two"
    yield Derived("global_batch", derived, "sequences", formula, DEEPSEEK)
    steps = max(1, math.ceil(tokens / (sequences * context)))
    formula = f"({how} = {tokens:.4g} tokens) / ({sequences} x {context})"
    yield Derived("steps", steps, "steps", formula, CHINCHILLA)
    rate = float(f"{0.3118 * spent**-0.1250:.3g}")
    formula = f"0.3118 x {spent:.4g} FLOP^-0.1250"
    yield Derived("optimizer.learning_rate", rate, "", formula, DEEPSEEK)
    optimizer = given.get("optimizer")
    own = optimizer.get("learning_rate") if isinstance(optimizer, dict) else getattr(optimizer, "learning_rate", None)
    rate = own if isinstance(own, int | float) else rate
    yield Derived("optimizer.minimum_learning_rate", float(f"{rate / 10:.3g}"), "", f"{rate:g} / 10", GPT3)
    if isinstance(own := given.get("steps"), int):
        steps = own
    formula = f"the lesser of {_MOST_WARMUP} and {steps} steps / 20"
    warmup = min(_MOST_WARMUP, steps // 20)
    yield Derived(
        "optimizer.warmup_steps", warmup, "steps", formula, "DeepSeek LLM 2024, arXiv 2401.02954, section 2.3"
    )


def _section(model: Any) -> dict[str, Any]:
    return {"name": model} if isinstance(model, str) else dict(model or {})


def _form(wanted: float, base: dict[str, Any]) -> dict[str, int]:
    """Return layers, width and heads of the small decoder whose parameters are nearest to those wanted."""

    def at(layers: int, more: int) -> tuple[float, dict[str, int]]:
        head = 128 if layers * WIDTH_PER_LAYER >= 1500 else 64 if layers * WIDTH_PER_LAYER >= 500 else 32
        heads = max(1, layers * WIDTH_PER_LAYER // head + more)
        form = {"layers": layers, "width": heads * head, "heads": heads}
        return abs(math.log(parameters(ModelConfig.model_validate({**base, **form})) / wanted)), form

    return min((at(layers, more) for layers in range(1, 257) for more in (0, 1)), key=lambda one: one[0])[1]
