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
_MOST = 0.05
"""Most tolerance / norm of the gradient: sums in another order differ by far less."""
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


def compute(engine: Any, tokens: Tensor, all_ranks: bool, kernels: Kernels = "deterministic") -> Digests:
    """Return this rank's digests; the engine's gradients and states stay as they are."""
    model = engine.module
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def run() -> Sequence[Tensor | None]:
        if not all_ranks:
            return torch.autograd.grad(model(tokens), parameters, allow_unused=True)
        with torch.no_grad():
            return [engine(tokens).detach()]

    weights = 0 if all_ranks else _digest([parameter.detach() for parameter in parameters])
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
    modes = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(modes[0], warn_only=modes[1])


def _digest(tensors: Sequence[Tensor | None]) -> int:
    """`None`: the gradient of a weight that the batch did not use."""
    whole_tensors = [tensor.contiguous() for tensor in tensors if tensor is not None]
    sums = [tensor.view(_OF_SIZE[tensor.element_size()]).sum(dtype=torch.int64) for tensor in whole_tensors]
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
            hashes = index * -7046029254386353131
            hashes = (hashes ^ (hashes >> 32)) * -4417276706812531889
            elements = torch.where(hashes < 0, -piece, piece).float()
            sums.append(F.pad(elements, (0, -len(piece) % _SKETCH)).view(-1, _SKETCH).sum(0, dtype=torch.float64))
            begin += len(piece)
    total: list[float] = torch.stack(sums).sum(0).tolist()
    return total


def verdict(digests: Sequence[Digests]) -> Corruption:
    """Judge the digests of all ranks, by rank."""
    if refusal := next((digest.refusal for digest in digests if digest.refusal), ""):
        return Corruption({}, "", refusal)
    differing = [rank for rank, digest in enumerate(digests) if digest.first != digest.again]
    reasons = dict.fromkeys(differing, "two runs of one micro batch differ")
    weights, gradients = ([getattr(digest, name) for digest in digests] for name in ("weights", "first"))
    for name, values in (("weights", weights), ("gradients", gradients)):
        ((value, count), *minorities) = Counter(values).most_common()
        if not minorities:
            continue
        if 2 * count > len(values):
            reason = f"its {name} differ from those of {count} ranks"
            reasons = {**{rank: reason for rank, digest in enumerate(values) if digest != value}, **reasons}
        elif not reasons:
            text = f"{len(minorities) + 1} different {name} on {len(values)} ranks: nobody can tell which is right"
            return Corruption({}, text)
    if not reasons and digests[0].sketches[0]:
        return _beyond_tolerance([digest.sketches for digest in digests])
    return _corruption(reasons)


def _beyond_tolerance(sketches: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Corruption:
    """Judge gradients that differ between sound runs: by the distance of a rank's two runs, and from the median."""
    first_runs, second_runs = (torch.tensor([pair[run] for pair in sketches], dtype=torch.float64) for run in range(2))
    middle = first_runs.median(dim=0).values
    spread, distance = (first_runs - second_runs).norm(dim=1), (first_runs - middle).norm(dim=1)
    scale = middle.norm()
    tolerance = (_TIMES * spread.median()).clamp(_LEAST * scale, _MOST * scale)
    # What is no number is outside.
    outside = torch.nonzero(~((spread <= tolerance) & (distance <= tolerance))).flatten().tolist()
    if 2 * len(outside) >= len(sketches) and outside:
        return Corruption({}, f"gradients of {len(outside)} of {len(sketches)} ranks are apart: nobody can tell")
    return _corruption(
        {
            rank: f"its runs differ by {float(spread[rank] / scale):.2g} of the gradient, and by "
            f"{float(distance[rank] / scale):.2g} from most; tolerance {float(tolerance / scale):.2g}"
            for rank in outside
        }
    )


def _corruption(reasons: dict[int, str]) -> Corruption:
    return Corruption(reasons, "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(reasons.items())))
