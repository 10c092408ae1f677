"""The search for silent data corruption: all ranks compute the gradients of one micro batch twice, and compare.

With deterministic kernels bits are compared. A rank that differs from itself computes wrongly. A rank that repeats
itself but differs from most others holds other weights, or has a unit that is always wrong. Between two ranks that only
differ from each other nobody can tell. With ZeRO's stage 3, or where ranks share matrices or sequences, no rank
computes alone: there the loss of the forward pass is compared, which all compute together.
Digests are sums of the raw bits as integers: exact, and the same in any order.

With the kernels of a step two runs of one sound GPU may differ: the backward passes of flash, memory-efficient and
cuDNN attention add in no fixed order. There the ranks compare sketches of their gradients, within a tolerance that
follows from how far the two runs of each rank differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SKETCH = 256
"""Numbers of a sketch: it gives distances within a tenth (relative deviation sqrt(2 / 256))."""
_SKETCHED_AT_ONCE = 2**24
_TIMES = 8.0
"""Tolerance / median distance of two runs of a rank."""
_LEAST = 1e-6
"""Least tolerance / norm of the gradient: kernels that differ seldom may have a median of 0."""
Kernels = Literal["deterministic", "training"]


class Digests(NamedTuple):
    """What one rank has computed; 0 for what is not compared."""

    weights: int
    first: int
    again: int
    sketches: tuple[Sequence[float], Sequence[float]] = ((), ())
    """Of both runs, where no bits are compared."""
    refusal: str = ""
    """Names the operation that has no deterministic kernel."""


class Corruption(NamedTuple):
    named: dict[int, str]
    """Rank -> what it does differently."""
    told: str
    """In words; empty when no rank computes differently."""
    refusal: str = ""
    """Why nothing could be compared; empty when it was."""


def compute(engine: Any, tokens: Tensor, together: bool, kernels: Kernels = "deterministic") -> Digests:
    """Return this rank's digests; the engine's gradients and states stay as they are."""
    model = engine.module
    parameters = [one for one in model.parameters() if one.requires_grad]

    def run() -> Sequence[Tensor | None]:
        if not together:
            return torch.autograd.grad(model(tokens), parameters, allow_unused=True)
        with torch.no_grad():
            return [engine(tokens).detach()]

    weights = 0 if together else _digest([one.detach() for one in parameters])
    if kernels == "training":
        return Digests(weights, 0, 0, (sketch(run()), sketch(run())))
    try:
        with _deterministic_kernels():
            return Digests(weights, _digest(run()), _digest(run()))
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        return Digests(weights, 0, 0, refusal=str(error).splitlines()[0][:300])


@contextmanager
def _deterministic_kernels() -> Iterator[None]:
    """Use deterministic kernels alone. With `warn_only` torch leaves the backward pass of attention as it is."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _digest(tensors: Sequence[Tensor | None]) -> int:
    """`None`: the gradient of a weight that the batch did not use."""
    given = [one.contiguous() for one in tensors if one is not None]
    sums = [one.view(_OF_SIZE[one.element_size()]).sum(dtype=torch.int64) for one in given]
    return int(torch.stack(sums).sum().item())


def sketch(tensors: Sequence[Tensor | None]) -> list[float]:
    """Return a projection of all elements to few numbers, which keeps distances.

    Each element counts, with a sign hashed from its index, in one number (Charikar et al. 2002, "Finding Frequent Items
    in Data Streams"). Signs are equal on every device.
    """
    begin, sums = 0, list[Tensor]()
    for tensor in tensors:
        for piece in () if tensor is None else tensor.flatten().split(_SKETCHED_AT_ONCE):
            index = torch.arange(begin, begin + len(piece), device=piece.device)
            mixed = index * -7046029254386353131
            mixed = (mixed ^ (mixed >> 32)) * -4417276706812531889
            signed = torch.where(mixed < 0, -piece, piece).float()
            sums.append(F.pad(signed, (0, -len(piece) % _SKETCH)).view(-1, _SKETCH).sum(0, dtype=torch.float64))
            begin += len(piece)
    total: list[float] = torch.stack(sums).sum(0).tolist()
    return total


def verdict(digests: Sequence[Digests]) -> Corruption:
    """Judge the digests of all ranks, by rank."""
    if refusal := next((one.refusal for one in digests if one.refusal), ""):
        return Corruption({}, "", refusal)
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
    if not named and digests[0].sketches[0]:
        return _beyond_tolerance([one.sketches for one in digests])
    return _of(named)


def _beyond_tolerance(sketches: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Corruption:
    """Judge gradients that differ between sound runs: by the distance of a rank's two runs, and from the median."""
    first, again = (torch.tensor([pair[run] for pair in sketches], dtype=torch.float64) for run in range(2))
    middle = first.median(dim=0).values
    spread, distance = (first - again).norm(dim=1), (first - middle).norm(dim=1)
    scale = middle.norm()
    tolerance = torch.maximum(_TIMES * spread.median(), _LEAST * scale)
    # What is no number is outside.
    outside = torch.nonzero(~((spread <= tolerance) & (distance <= tolerance))).flatten().tolist()
    if 2 * len(outside) >= len(sketches) and outside:
        return Corruption({}, f"gradients of {len(outside)} of {len(sketches)} ranks are apart: nobody can tell")
    return _of(
        {
            rank: f"its runs differ by {float(spread[rank] / scale):.2g} of the gradient, and by "
            f"{float(distance[rank] / scale):.2g} from most; tolerance {float(tolerance / scale):.2g}"
            for rank in outside
        }
    )


def _of(named: dict[int, str]) -> Corruption:
    return Corruption(named, "; ".join(f"rank {rank}: {why}" for rank, why in sorted(named.items())))
