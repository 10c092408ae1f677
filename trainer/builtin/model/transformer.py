"""A decoder-only transformer in Llama's form: pre-norm RMSNorm, rotary positions, SwiGLU, tied embeddings, no biases.

It must compute what `LlamaForCausalLM` computes: `trainer/builtin/checkpoint/convert/export.py` relies on that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.builtin.model.documents import bounds, mask_of, split
from trainer.builtin.model.recompute import runner
from trainer.builtin.model.sequence import Spread, shared_loss
from trainer.contract import ModelConfig, OptimizerConfig, RecomputeConfig

ROTARY_BASE = 10_000.0
NORM_EPSILON = 1e-5
_INITIAL_DEVIATION = 0.02


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.spread: Spread | None = None
        self.project_in = nn.Linear(config.width, 3 * config.width, bias=False)
        self.project_out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        batch, length, _ = x.shape
        # A rank of a tensor-parallel group has some of the heads.
        shape = (batch, length, -1, self.head_width)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.project_in(x).chunk(3, dim=-1))
        query, key = _rotate(query, rotation), _rotate(key, rotation)

        def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)

        mixture = self.spread.attend(mix, query, key, value) if self.spread else mix(query, key, value)
        return self.project_out(mixture.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = swiglu_width(config.width)
        self.project_in = nn.Linear(config.width, 2 * inner, bias=False)
        self.project_out = nn.Linear(inner, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.project_in(x).chunk(2, dim=-1)
        return self.project_out(F.silu(gate) * value)


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=NORM_EPSILON)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.width, eps=NORM_EPSILON)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(nn.Module):
    """Maps token ids (batch, context + 1) to the mean next-token loss in nats, of those tokens that count."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: ModelConfig, recompute: RecomputeConfig | None = None, draw: bool = True) -> None:
        super().__init__()
        self.config = config
        self.spread: Spread | None = None
        self._runners = [runner(recompute or RecomputeConfig(), block) for block in range(config.layers)]
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=NORM_EPSILON)
        for name in ("cosine", "sine"):
            self.register_buffer(name, torch.empty(0), persistent=False)
        (self.initialize if draw else self.renew_rotations)()

    def forward(self, sequences: Tensor) -> Tensor:
        inputs, targets = split(sequences)
        return shared_loss(self._hidden(inputs).flatten(0, 1), self.embedding.weight, targets, self.spread)

    def share_sequences(self, spread: Spread) -> None:
        """Compute a part of each sequence on each rank of a group."""
        self.spread = spread
        for module in self.modules():
            if isinstance(module, Attention):
                module.spread = spread

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the scores of every next token, shape (batch, length, vocabulary)."""
        return F.linear(self._hidden(tokens), self.embedding.weight)

    def _hidden(self, tokens: Tensor) -> Tensor:
        x = self.embedding(self.spread.part(tokens) if self.spread else tokens)
        rotation, mask = self._bounds(tokens, x.dtype)
        for run, block in zip(self._runners, self.blocks, strict=True):
            x = run(block, x, rotation, mask)
        return self.norm(x)

    def _bounds(self, tokens: Tensor, kind: torch.dtype) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Return the rotation by position and the attention mask; None for the plain causal one."""
        length = tokens.shape[1]
        cosine, sine = (self.cosine[:length].to(kind), self.sine[:length].to(kind))
        document, position = bounds(tokens, self.config)
        mask = None if document is None else mask_of(document, position, tokens, blockwise=False)
        if position is not None:
            position = self.spread.part(position) if self.spread else position
            return (cosine[position].unsqueeze(1), sine[position].unsqueeze(1)), mask
        if self.spread:
            cosine, sine = self.spread.part(cosine, 0), self.spread.part(sine, 0)
        return (cosine, sine), mask

    def initialize(self, gather: Callable[[Tensor], AbstractContextManager[Any]] = nullcontext) -> None:
        """Draw new weights and compute the rotation table. `gather` makes a parameter whole that is spread over ranks.

        Both are computed in float32 whatever the parameters' type, so that they are equal with every ZeRO stage.
        """
        self.renew_rotations()
        for name, parameter in self.named_parameters():
            with gather(parameter), torch.no_grad():
                if parameter.dim() < 2:
                    continue
                residual = name.endswith("project_out.weight")
                deviation = _INITIAL_DEVIATION / math.sqrt(2 * self.config.layers) if residual else _INITIAL_DEVIATION
                parameter.copy_(torch.empty(parameter.shape).normal_(std=deviation))

    def renew_rotations(self) -> None:
        """Compute the rotation table where the parameters lie: with ZeRO stage 3 they are on the device already, and
        nobody moves it later."""
        device = self.embedding.weight.device
        self.cosine, self.sine = (table.to(device) for table in _rotation_table(self.config))


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, object]]:
    """Return AdamW's groups of what is trained: weight decay applies to matrices, not to gains."""
    matrices, gains = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        # A parameter that is spread over ranks is empty, and DeepSpeed notes its shape.
        (matrices if len(getattr(parameter, "ds_shape", parameter.shape)) >= 2 else gains).append(parameter)
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": gains, "weight_decay": 0.0}]
    # DeepSpeed flattens each group, and none may be empty, as that of the gains is with adapters.
    return [group for group in groups if group["params"]]


def swiglu_width(width: int) -> int:
    """Return 2/3 of 4 x width (Shazeer 2020, "GLU Variants Improve Transformer"), rounded up to a multiple of 32."""
    return -(-8 * width // (3 * 32)) * 32


def _rotation_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    width = config.width // config.heads
    # The same order of operations as in Llama: another one differs in the last bit.
    frequency = 1.0 / (ROTARY_BASE ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
    angle = torch.outer(torch.arange(config.context, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
