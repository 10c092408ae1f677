"""What the watch reads of the engine in a step, on the device: it changes nothing, and costs one transfer per step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from deepspeed.runtime.utils import is_model_parallel_parameter
from torch import Tensor

BLOCK_GROUPS = 4
_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")


class Read(NamedTuple):
    """Plain numbers of one step of one rank. Squares are sums over this rank's part."""

    losses: list[float]
    """By micro batch."""
    layers: list[float]
    weights: list[float]
    activation: float
    """Mean square of the last block's output."""


def group_names(layers: int) -> tuple[str, ...]:
    """Return the groups of layers: the embedding, up to four ranges of blocks, and the last norm."""
    count = min(BLOCK_GROUPS, layers)
    bounds = [index * layers // count for index in range(count + 1)]
    blocks = [f"blocks {a}-{b - 1}" if b - a > 1 else f"block {a}" for a, b in pairwise(bounds)]
    return ("embedding", *blocks, "norm")


def group_of(name: str, layers: int) -> int:
    """Return the index of a parameter's group."""
    if (found := _BLOCK.search(name)) is None:
        return 0 if "embedding" in name else len(group_names(layers)) - 1
    count, block = min(BLOCK_GROUPS, layers), int(found[1])
    return 1 + next(index for index in range(count) if block < (index + 1) * layers // count)


class Signals:
    """Reads gradients before the optimizer's step, as DeepSpeed has reduced and divided them, and weights after it."""

    def __init__(self, engine: Any, layers: int, ranks: int) -> None:
        self._engine, self._ranks = engine, ranks
        self.groups = group_names(layers)
        self._group = {
            id(one): group_of(name, layers)
            for name, one in engine.module.named_parameters()
            # What each rank of a tensor-parallel group has whole counts once.
            if engine.checkpoint_mp_rank == 0 or is_model_parallel_parameter(one)
        }
        self._lengths: list[list[tuple[int, int]]] = []
        """By partition: (elements, group or -1 for what does not count) of each piece."""
        self._pending: Tensor | None = None
        self._activation: Tensor | None = None
        self._looking = False
        last = getattr(engine.module, "norm", None)
        if last is not None:
            last.register_forward_pre_hook(self._note_activation)

    def _note_activation(self, module: Any, given: tuple[Tensor, ...]) -> None:
        if self._looking:
            self._looking = False
            self._activation = given[0].detach().float().square().mean()

    def step_begins(self) -> None:
        self._looking, self._activation, self._pending = True, None, None

    def before_update(self) -> None:
        """Note the gradients, when all micro batches are through."""
        self._lengths, found = [], []
        for gradients, parameters, _ in self._partitions():
            pieces = list(self._pieces(gradients, parameters))
            self._lengths.append([(length, group) for _, length, group in pieces])
            found += [(gradient, group) for gradient, _, group in pieces if group >= 0]
        self._pending = self._squares(found)

    def read(self, losses: Sequence[Tensor]) -> Read:
        """Return all figures in one transfer. Wait for the device."""
        weights: list[tuple[Tensor, int]] = []
        for (_, _, flat), lengths in zip(self._partitions(gradients=False), self._lengths, strict=False):
            rest = flat.numel() - sum(length for length, _ in lengths)
            if rest < 0:
                continue
            lengths = [*lengths, (rest, -1)]
            pieces = torch.split(flat.detach(), [length for length, _ in lengths])
            weights += [(piece, group) for piece, (_, group) in zip(pieces, lengths, strict=True) if group >= 0]
        count, zero = len(self.groups), torch.zeros((), dtype=torch.float64)
        parts = [torch.stack([loss.detach().float() for loss in losses]).double()]
        parts += [self._pending if self._pending is not None else zero.expand(count)]
        parts += [self._squares(weights), (self._activation if self._activation is not None else zero).double()[None]]
        device = parts[0].device
        values = torch.cat([part.to(device) for part in parts]).tolist()
        at = len(losses)
        return Read(values[:at], values[at : at + count], values[at + count : at + 2 * count], values[-1])

    def _squares(self, found: list[tuple[Tensor, int]]) -> Tensor:
        """Return the sum of squares by group, in float64 on the device."""
        if not found:
            return torch.zeros(len(self.groups), dtype=torch.float64)
        norms = torch.stack(torch._foreach_norm([tensor for tensor, _ in found], 2.0, torch.float32)).double()
        index = torch.tensor([group for _, group in found], device=norms.device)
        return torch.zeros(len(self.groups), dtype=torch.float64, device=norms.device).index_add_(0, index, norms**2)

    def _pieces(self, gradients: Sequence[Tensor], parameters: Sequence[Any]) -> Any:
        """Yield (gradient, elements, group or -1 for padding)."""
        owners = iter(parameters)
        for gradient in gradients:
            padding = getattr(gradient, "_zero_padding", False)
            owner = None if padding else next(owners, None)
            yield gradient, gradient.numel(), -1 if owner is None else self._group.get(id(owner), -1)

    def _partitions(self, gradients: bool = True) -> Any:
        """Yield (gradients, their parameters, flat float32 weights) of each of this rank's partitions: ZeRO's stages 1
        to 3 of DeepSpeed 0.19. With stage 0 there are none."""
        optimizer = self._engine.optimizer
        averaged = getattr(optimizer, "averaged_gradients", None)
        if averaged is None:
            return
        if hasattr(optimizer, "params_in_partition"):
            owners, flats = optimizer.params_in_partition, optimizer.single_partition_of_fp32_groups
        else:
            owners, flats = optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat
        for index, flat in enumerate(flats):
            found = averaged.get(index) if gradients else ()
            yield found if found is not None else (), owners[index], flat
