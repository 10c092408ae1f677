"""The run's own path for fake tensors: without this, a memory prediction sees attention and norms that no run has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from trainer.builtin.model.building import Model
from trainer.builtin.model.named import NamedModel

_BLOCKWISE = "predicted-blockwise"
"""Our name among the attention functions of `transformers`; it has no mask function there, so no mask is built."""


@contextmanager
def real_masks() -> Iterator[None]:
    """Let `transformers` choose the attention mask as for real tensors.

    It takes fake ones for packed documents: it would build a mask of all pairs of positions, and repeat the key heads,
    which no mask shares. Our positions count on, or a mask of ours comes with them.
    """
    from transformers import masking_utils

    original = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda *positions, **named_positions: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = original


def use_kernels(model: Model, blockwise: bool) -> None:
    """Replace in a fake model what an accelerator computes by one kernel: RMSNorm and, if `blockwise`, FlexAttention.

    Fake tensors take the processor's path: an RMSNorm whose parts all keep their results, and all pairs' scores.
    """
    for module in model.modules():
        if type(module) is nn.RMSNorm:  # its kernel keeps the input and a number per row, as LayerNorm's does
            norm = partial(F.layer_norm, normalized_shape=module.normalized_shape, weight=module.weight)
            module.forward = norm  # type: ignore[method-assign]
    if blockwise and isinstance(model, NamedModel):
        from transformers import AttentionInterface

        AttentionInterface.register(_BLOCKWISE, _attend_blockwise)
        model.network.set_attn_implementation(_BLOCKWISE)


def _attend_blockwise(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **keywords: Any
) -> tuple[Tensor, None]:
    """Keep what FlexAttention keeps: query, key, value, result, and one float32 per row, as flash attention does.

    `transformers` repeats key heads for it where the number of heads is no power of two (`flex_attention_forward`).
    """
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    heads = query.shape[1]
    if heads & (heads - 1):
        key, value = (repeat_kv(tensor, heads // tensor.shape[1]) for tensor in (key, value))
    mixture: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, None, **keywords)
    return mixture
