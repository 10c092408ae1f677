"""Tensor parallelism: which matrices DeepSpeed's AutoTP deals out to the ranks of a group, and how they become whole.

The first matrix of a pair is cut by its rows and the second by its columns, so one exchange per pair is enough
(Shoeybi et al. 2019, "Megatron-LM"). Embedding, output layer and gains stay whole on every rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.builtin.model.building import build
from trainer.builtin.model.named import NamedModel
from trainer.contract import ModelConfig
from trainer.errors import ConfigError, StorageError

_STYLES = {
    "colwise": ("column", False),
    "rowwise": ("row", False),
    "replicated_with_grad_allreduce": ("skip", True),
}  # fmt: skip
"""Styles of the plans of `transformers`, in AutoTP's words, and whether the group's gradients are summed."""


@dataclass(frozen=True)
class Rule:
    """How one kind of layer is dealt out."""

    layer: str
    """Regular expression of the layer's name."""
    kind: str
    """`column`: by the rows of the weight, which are outputs; `row`: by its columns; `skip`: it stays whole."""
    pieces: int = 1
    """Matrices of equal size that lie one below the other in the weight; each is dealt out by itself."""
    summed: bool = False
    """Each rank computes a part of the gradient of what stays whole."""

    def for_deepspeed(self) -> dict[str, Any]:
        shape_entry = {"shape": [self.pieces, -1], "partition_dim": 0} if self.pieces > 1 else {}
        entry = {"patterns": [rf"(.*\.)?{self.layer}\.weight$"], "partition_type": self.kind}
        return {**entry, "grad_allreduce": self.summed, **shape_entry}

    def cut(self, parameter: str) -> int | None:
        """Return the dimension by which a parameter is dealt out; None if it stays whole."""
        match = re.fullmatch(rf"(.*\.)?{self.layer}\.(weight|bias)", parameter)
        if match is None or self.kind == "skip":
            return None
        if match[2] == "bias":
            return 0 if self.kind == "column" else None
        return 0 if self.kind == "column" else 1


_DECODER = (
    Rule(r"attention\.project_in", "column", pieces=3),
    Rule(r"attention\.project_out", "row"),
    Rule(r"feed_forward\.project_in", "column", pieces=2),
    Rule(r"feed_forward\.project_out", "row"),
)


def rules_for(model: ModelConfig) -> tuple[Rule, ...]:
    """Return the rules for a described model; no tensor of it is made."""
    with torch.device("meta"):
        return rules_of(build(model))


def rules_of(model: nn.Module) -> tuple[Rule, ...]:
    """Return the rules for a model. Raises `ConfigError` where the model has no plan that is understood here."""
    if not isinstance(model, NamedModel):
        return _DECODER
    plan = getattr(model.network.config, "base_model_tp_plan", None) or {}
    unknown_styles = sorted({style for style in plan.values() if style not in _STYLES})
    if not plan or unknown_styles:
        description = f"{model.config.name}: {', '.join(unknown_styles) or 'no base_model_tp_plan'}"
        raise ConfigError(
            "the model has no plan for tensor parallelism", description, "write training.parallel.tensor: 1"
        )
    return tuple(
        Rule(re.escape(layer).replace(r"\*", r"\d+"), kind, summed=sums_gradients)
        for layer, (kind, sums_gradients) in ((layer, _STYLES[style]) for layer, style in plan.items())
    )


def dealt_out(name: str, tensor: Tensor, rules: Sequence[Rule], ranks: int) -> Tensor:
    """Return as much of a parameter as a rank has; only its size is right where several matrices lie in one."""
    dims = [dim for rule in rules if (dim := rule.cut(name)) is not None]
    return tensor.detach().chunk(ranks, dim=dims[0])[0].clone() if dims else tensor


def join(parts: Sequence[dict[str, Tensor]], rules: Sequence[Rule]) -> dict[str, Tensor]:
    """Return whole tensors from those of each rank of a group. Raises `StorageError` where they do not fit together."""
    if len({frozenset(part) for part in parts}) > 1:
        raise StorageError("the ranks of a tensor-parallel group hold different tensors", f"{len(parts)} files")
    weights = {}
    for name, shard in parts[0].items():
        tensors = [part[name] for part in parts]
        matches = [(rule, dim) for rule in rules if (dim := rule.cut(name)) is not None]
        if not matches:
            if any(not torch.equal(tensor, shard) for tensor in tensors[1:]):
                raise StorageError("the ranks of a tensor-parallel group differ in a tensor that each has whole", name)
            weights[name] = shard
            continue
        (rule, dim), *_ = matches
        pieces = zip(*(tensor.chunk(rule.pieces, dim=dim) for tensor in tensors), strict=True)
        weights[name] = torch.cat([part for piece in pieces for part in piece], dim=dim)
    return weights
