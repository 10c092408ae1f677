"""A step's figures: what each rank puts into the one exchange of a step, and what all read from it.

MFU = FLOP of a token x tokens/s / (ranks x peak). FLOP of a token = 6 N + 12 layers x width of all heads x context,
with N all parameters but an embedding that is not the output layer too (`contract.model.shape`, as in the plan).
Source: Chowdhery et al. 2022, "PaLM", appendix B. Beside adapters the weights are frozen: 4 N, without their gradients,
and 6 per parameter of the adapters.
HFU counts also what is computed again: a forward pass (2 FLOP per parameter, and 4 layers x width of all heads x
context) of each block that `recompute: full` covers. Source of the term: Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models".
Operations that are cheap to compute again (`selective`) count in neither. Without an accelerator whose peak is known
there is neither.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from trainer.builtin.watch.times import relative
from trainer.contract import StepFigures, TrainConfig
from trainer.contract.model.shape import work_of

PARTS = ("data", "forward", "backward", "communication", "optimizer", "checkpoint")
"""Parts of a step, in seconds. `communication`: reduction of gradients that no computation hides. `optimizer` includes
its own exchange of weights."""
_SLOTS = 3
"""Values that each rank keeps for itself in the exchange: loss, seconds of its forward passes, memory."""


@dataclass
class Mine:
    """What one rank knows of its step."""

    loss: float = 0.0
    finite: bool = True
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by `PARTS`."""
    memory_gib: float = 0.0
    layers: Sequence[float] = ()
    """Sum of squared gradients by group, of this rank's part."""
    weights: Sequence[float] = ()
    activation: float = 0.0
    entropy: float = 0.0
    rounding: float | None = None
    """Of rank 0's loss from that in float32, where it was looked for; the loop exchanges it."""
    others: Sequence[float] = ()
    """What the loop itself exchanges."""


@dataclass(frozen=True)
class All:
    """The same of all ranks. A value that is not finite on one rank is not finite here."""

    loss: float
    """Mean."""
    finite: bool
    parts: dict[str, float]
    """Means."""
    layers: tuple[float, ...]
    """Norms by group."""
    weights: tuple[float, ...]
    activation: float
    entropy: float
    others: tuple[float, ...]
    """Sums."""
    losses: tuple[float, ...]
    """By rank."""
    forward_s: tuple[float, ...]
    memory_gib: tuple[float, ...]


def pack(figures: Mine, rank: int, ranks: int) -> list[float]:
    """Return the numbers whose sums over all ranks `unpack` reads: a few, and `_SLOTS` places for each rank."""
    parts = [figures.parts.get(name, 0.0) for name in PARTS]
    slots = [0.0] * (_SLOTS * ranks)
    own_slots = (figures.loss, figures.parts.get("forward", 0.0), figures.memory_gib)
    slots[_SLOTS * rank : _SLOTS * (rank + 1)] = own_slots
    head = [figures.loss, float(figures.finite), *figures.others, *parts, figures.activation, figures.entropy]
    return [*head, *figures.layers, *figures.weights, *slots]


def unpack(sums: Sequence[float], figures: Mine, ranks: int) -> All:
    """Read what came back for `pack`; `figures` tells the lengths, which are equal on all ranks."""
    values = iter(sums)

    def take(count: int) -> tuple[float, ...]:
        return tuple(next(values) for _ in range(count))

    loss, finite = take(2)
    other_sums, parts = take(len(figures.others)), take(len(PARTS))
    activation, entropy = take(2)
    layers, weights = take(len(figures.layers)), take(len(figures.weights))
    slots = tuple(values)
    return All(
        loss=loss / ranks,
        finite=finite == ranks,
        parts={name: seconds / ranks for name, seconds in zip(PARTS, parts, strict=True)},
        layers=tuple(map(_root, layers)),
        weights=tuple(map(_root, weights)),
        activation=_root(activation / ranks),
        entropy=entropy / ranks,
        others=other_sums,
        losses=slots[0::_SLOTS],
        forward_s=slots[1::_SLOTS],
        memory_gib=slots[2::_SLOTS],
    )


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 and math.isfinite(square) else math.nan


@dataclass(frozen=True)
class Utilisation:
    """The formulas of MFU and HFU for one configuration."""

    flop: float
    """Of one step."""
    hardware_flop: float
    """Of one step, with what is computed again."""
    peak: float | None
    """FLOP/s of all accelerators together; None: unknown."""

    @classmethod
    def of(cls, config: TrainConfig, ranks: int, has_gpu: bool) -> Utilisation:
        model, recompute = config.model, config.recompute
        work, extra_flop = work_of(model), 0
        if recompute.policy == "full":
            recomputed_layers = -(-work.layers // recompute.every)
            extra_flop += recomputed_layers * (2 * work.block + 4 * work.queries * model.context)
        token = work.flop(model.context)
        tokens, peak = config.tokens_per_step(), config.peak_bf16_tflops
        has_peak = peak is not None and has_gpu
        return cls(tokens * token, tokens * (token + extra_flop), ranks * (peak or 0.0) * 1e12 if has_peak else None)

    def mfu(self, seconds: float) -> float | None:
        return None if self.peak is None else round(self.flop / (seconds * self.peak), 4)

    def hfu(self, seconds: float) -> float | None:
        return None if self.peak is None else round(self.hardware_flop / (seconds * self.peak), 4)


def step_figures(
    sums: All,
    seconds: float,
    rate: float,
    norm: float | None,
    groups: Sequence[str],
    tokens: int,
    utilisation: Utilisation,
) -> StepFigures:
    """Return what events and metrics tell of a step that took `seconds`, the stall of a save before it included."""
    ratios = relative(sums.forward_s)
    slowest = max(range(len(ratios)), key=ratios.__getitem__) if len(ratios) > 1 else None
    parts = {name: round(value, 4) for name, value in sums.parts.items()}
    return StepFigures(
        norm=norm,
        rate=rate,
        tokens_per_second=round(tokens / seconds, 1),
        mfu=utilisation.mfu(seconds),
        hfu=utilisation.hfu(seconds),
        memory_gib=round(max(sums.memory_gib), 3),
        data_s=parts["data"],
        compute_s=round(sums.parts["forward"] + sums.parts["backward"], 4),
        communication_s=parts["communication"],
        optimizer_s=parts["optimizer"],
        checkpoint_s=parts["checkpoint"],
        layers=dict(zip(groups, (round(norm, 6) for norm in sums.layers), strict=True)) if any(sums.layers) else {},
        slowest_rank=slowest,
        slowest_ratio=None if slowest is None else round(ratios[slowest], 3),
    )


class Split:
    """Seconds by part of one step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, Any, Any]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if self._device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((name, begin, end))
            return
        start_s = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - start_s)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds and begin anew. On a GPU the stream must have passed the last event."""
        for name, begin, end in self._events:
            self.add(name, begin.elapsed_time(end) / 1000)
        seconds, self._seconds, self._events = self._seconds, {}, []
        # The reduction runs within the backward pass.
        if "backward" in seconds:
            seconds["backward"] = max(0.0, seconds["backward"] - seconds.get("communication", 0.0))
        return seconds

    def time_reduction(self, engine: Any) -> None:
        """Time the engine's reduction of gradients: of ZeRO's stages 0 and 1 all of it, of 2 and 3 what the backward
        pass does not hide."""
        reduce = getattr(engine, "allreduce_gradients", None)
        if reduce is None:
            return

        def timed_reduce(*args: Any, **kwargs: Any) -> Any:
            with self.part("communication"):
                return reduce(*args, **kwargs)

        engine.allreduce_gradients = timed_reduce


def memory_gib(device: torch.device) -> float:
    """Return the most that this process has allocated on its accelerator; without one, what it has in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * 4096 / 2**30
    except (OSError, ValueError, IndexError):
        return 0.0
