"""What the watch reads of the engine in a step, on the device: it changes nothing, and costs one transfer per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from deepspeed.runtime.utils import is_model_parallel_parameter
from torch import Tensor, nn

from trainer.builtin.model import blocks_of

BLOCK_GROUPS = 128
"""Most groups of blocks: in a group of twenty a dead block would leave 97 % of the norm."""
Counted = list[tuple[Tensor, int]]
"""Tensors, each with its group."""


class Read(NamedTuple):
    """Plain numbers of one step of one rank. Squares are sums over this rank's part."""

    losses: list[float]
    """By micro batch."""
    layers: list[float]
    weights: list[float]
    activation: float
    """Mean square of the last block's output."""


class Groups(NamedTuple):
    """The groups of a model's layers: the embedding, each block (ranges beyond `BLOCK_GROUPS`), the last norm,
    and an output layer that is not the embedding."""

    names: tuple[str, ...]
    of: dict[int, int]
    """`id` of a parameter -> its group."""

    @classmethod
    def of_model(cls, model: nn.Module) -> Groups:
        blocks = blocks_of(model)
        count = min(BLOCK_GROUPS, len(blocks))
        bounds = [index * len(blocks) // count for index in range(count + 1)] if count else []
        ranges = [f"blocks {a}-{b - 1}" if b - a > 1 else f"block {a}" for a, b in pairwise(bounds)]
        names = ["embedding", *ranges, "norm"]
        group_by_id = {id(parameter): len(names) - 1 for parameter in model.parameters()}
        for group, (a, b) in enumerate(pairwise(bounds), 1):
            group_by_id |= {id(parameter): group for block in blocks[a:b] for parameter in block.parameters()}
        tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        output = getattr(getattr(model, "network", None), "get_output_embeddings", lambda: None)()
        if output is not None and id(output.weight) not in tables:
            names.append("output")
            group_by_id[id(output.weight)] = len(names) - 1
        return cls(tuple(names), group_by_id | dict.fromkeys(tables, 0))


class Signals:
    """Reads gradients before the optimizer's step, as DeepSpeed has reduced and divided them, and weights after it."""

    def __init__(self, engine: Any, is_first: bool) -> None:
        """`is_first`: this is rank 0, which counts what all ranks have whole."""
        self._engine, self._first = engine, is_first
        model = engine.module
        self.groups, self._group = Groups.of_model(model)
        # What each rank of a tensor-parallel group has whole counts once.
        full_parameters = [parameter for parameter in model.parameters() if not is_model_parallel_parameter(parameter)]
        if full_parameters and engine.checkpoint_mp_rank != 0:
            for parameter in full_parameters:
                self._group.pop(id(parameter), None)
        self._lengths: list[list[tuple[int, int]]] = []
        """By partition: (elements, group or -1 for what does not count) of each piece."""
        self._pending: Tensor | None = None
        self._activation: Tensor | None = None
        self._looking = False
        if blocks := blocks_of(model):
            blocks[-1].register_forward_hook(self._note_activation)

    def _note_activation(self, module: Any, inputs: Any, outputs: Any) -> None:
        if self._looking:
            self._looking = False
            hidden = outputs[0] if isinstance(outputs, tuple) else outputs
            self._activation = hidden.detach().float().square().mean()

    def step_begins(self) -> None:
        self._looking, self._activation, self._pending = True, None, None

    def before_update(self) -> None:
        """Note the gradients, when all micro batches are through."""
        self._lengths, gradients_by_group = [], self._full_tensors(gradients=True)
        for gradients, parameters, _ in self._partitions():
            pieces = list(self._pieces(gradients, parameters))
            self._lengths.append([(length, group) for _, length, group in pieces])
            gradients_by_group += [(gradient, group) for gradient, _, group in pieces if group >= 0]
        self._pending = self._squares(gradients_by_group)

    def read(self, losses: Sequence[Tensor]) -> Read:
        """Return all figures in one transfer. Wait for the device."""
        weights = self._full_tensors(gradients=False)
        for (_, _, flat), lengths in zip(self._partitions(gradients=False), self._lengths, strict=False):
            padding = flat.numel() - sum(length for length, _ in lengths)
            if padding < 0:
                continue
            lengths = [*lengths, (padding, -1)]
            pieces = torch.split(flat.detach(), [length for length, _ in lengths])
            weights += [(piece, group) for piece, (_, group) in zip(pieces, lengths, strict=True) if group >= 0]
        count, zero = len(self.groups), torch.zeros((), dtype=torch.float64)
        parts = [torch.stack([loss.detach().float() for loss in losses]).double()]
        parts += [self._pending if self._pending is not None else zero.expand(count)]
        parts += [self._squares(weights), (self._activation if self._activation is not None else zero).double()[None]]
        device = parts[0].device
        values = torch.cat([part.to(device) for part in parts]).tolist()
        end = len(losses)
        return Read(values[:end], values[end : end + count], values[end + count : end + 2 * count], values[-1])

    def _squares(self, tensors: Counted) -> Tensor:
        """Return the sum of squares by group, in float64 on the device."""
        if not tensors:
            return torch.zeros(len(self.groups), dtype=torch.float64)
        norms = torch.stack(torch._foreach_norm([tensor for tensor, _ in tensors], 2.0, torch.float32)).double()
        index = torch.tensor([group for _, group in tensors], device=norms.device)
        return torch.zeros(len(self.groups), dtype=torch.float64, device=norms.device).index_add_(0, index, norms**2)

    def _pieces(self, gradients: Sequence[Tensor], parameters: Sequence[Any]) -> Any:
        """Yield (gradient, elements, group or -1 for padding)."""
        owners = iter(parameters)
        for gradient in gradients:
            padding = getattr(gradient, "_zero_padding", False)
            owner = None if padding else next(owners, None)
            yield gradient, gradient.numel(), -1 if owner is None else self._group.get(id(owner), -1)

    def _full_tensors(self, gradients: bool) -> Counted:
        """Return gradients, or float32 weights, of ZeRO's stage 0, where each rank has all of them and rank 0 tells."""
        optimizer = self._engine.optimizer
        if not self._first or hasattr(optimizer, "averaged_gradients"):
            return []
        # DeepSpeed's optimizer for bfloat16 keeps float32 weights beside the model's.
        owners = getattr(optimizer, "fp16_groups", None) or [group["params"] for group in optimizer.param_groups]
        sources = owners if gradients else getattr(optimizer, "fp32_groups", owners)
        tensors = list[tuple[Tensor, int]]()
        for source, owner in zip(chain.from_iterable(sources), chain.from_iterable(owners), strict=True):
            tensor = source.grad if gradients else source.detach()
            if tensor is not None and id(owner) in self._group:
                tensors.append((tensor, self._group[id(owner)]))
        return tensors

    def _partitions(self, gradients: bool = True) -> Iterator[Any]:
        """Yield (gradients, their parameters, flat float32 weights) of each of this rank's partitions: ZeRO's stages 1
        to 3 of DeepSpeed 0.19. With stage 0 there are none."""
        optimizer = self._engine.optimizer
        gradients_by_partition = getattr(optimizer, "averaged_gradients", None)
        if gradients_by_partition is None:
            return
        if hasattr(optimizer, "params_in_partition"):
            owners, flats = optimizer.params_in_partition, optimizer.single_partition_of_fp32_groups
        else:
            owners, flats = optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat
        for index, flat in enumerate(flats):
            partition = gradients_by_partition.get(index) if gradients else ()
            yield partition if partition is not None else (), owners[index], flat
