"""The search for silent data corruption: all ranks compute the gradients of one micro batch twice, and compare bits.

A rank that differs from itself computes wrongly. A rank that repeats itself but differs from most others holds other
weights, or has a unit that is always wrong. Between two ranks that only differ from each other nobody can tell. With
ZeRO's stage 3, or where ranks share matrices or sequences, no rank computes alone: there the loss of the forward pass
is compared, which all compute together.
Digests are sums of the raw bits as integers: exact, and the same in any order.

And the search for a loss of precision: how far the loss of one micro batch is from what float32 gives on equal weights.
Weights are float32 in the optimizer, so the updates keep small changes. What 8 bits lose, they lose in the computation,
where attention scores and states grow too large for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NARROW = (torch.bfloat16, torch.float16)


class Digests(NamedTuple):
    """What one rank has computed; 0 for what is not compared."""

    weights: int
    first: int
    again: int


class Corruption(NamedTuple):
    named: dict[int, str]
    """Rank -> what it does differently."""
    told: str
    """In words; empty when all bits are equal."""


def compute(engine: Any, tokens: Tensor, together: bool) -> Digests:
    """Return this rank's digests; the engine's gradients and states stay as they are."""
    model = engine.module
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        if together:
            with torch.no_grad():
                first, again = (_digest([engine(tokens).detach()]) for _ in range(2))
            return Digests(0, first, again)
        parameters = [one for one in model.parameters() if one.requires_grad]
        first, again = (_digest(torch.autograd.grad(model(tokens), parameters, allow_unused=True)) for _ in range(2))
        return Digests(_digest([one.detach() for one in parameters]), first, again)
    finally:
        torch.use_deterministic_algorithms(deterministic)


def _digest(tensors: Sequence[Tensor | None]) -> int:
    """`None`: the gradient of a weight that the batch did not use."""
    given = [one.contiguous() for one in tensors if one is not None]
    sums = [one.view(_OF_SIZE[one.element_size()]).sum(dtype=torch.int64) for one in given]
    return int(torch.stack(sums).sum().item())


def verdict(digests: Sequence[Digests]) -> Corruption:
    """Judge the digests of all ranks, by rank."""
    named = {rank: "two runs of one micro batch differ" for rank, one in enumerate(digests) if one.first != one.again}
    for name, values in (("weights", [one.weights for one in digests]), ("gradients", [one.first for one in digests])):
        ((value, count), *others) = Counter(values).most_common()
        if not others:
            continue
        if 2 * count > len(values):
            why = f"its {name} differ from those of {count} ranks"
            named = {**{rank: why for rank, one in enumerate(values) if one != value}, **named}
        elif not named:
            told = f"{len(others) + 1} different {name} on {len(values)} ranks: nobody can tell which is right"
            return Corruption({}, told)
    return Corruption(named, "; ".join(f"rank {rank}: {why}" for rank, why in sorted(named.items())))


class _InFloat32(TorchFunctionMode):
    """Every operation gets float32 in place of a narrower format: one widened matrix at a time, no second model."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given, named = tree_map(_wide, (args, dict(kwargs or {})))
        return function(*given, **named)


def _wide(value: Any) -> Any:
    return value.to(torch.float32) if isinstance(value, Tensor) and value.dtype in _NARROW else value


def rounding(model: nn.Module, tokens: Tensor) -> float:
    """Return the relative difference of the loss from that in float32. The model must be whole on this rank."""
    with torch.no_grad():
        own = float(model(tokens))
        with _InFloat32():
            wide = float(model(tokens))
    return abs(own - wide) / max(abs(wide), 1e-12)
