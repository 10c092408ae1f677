"""Documents of packed sequences: their bounds, and the mask that keeps them apart."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.contract import ModelConfig


def split(sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs and, shifted by one, the targets of sequences (batch, length + 1), each (batch, length).

    Masked data has -1 - t for a token t that the loss does not count: as a target it stays negative.
    """
    inputs = sequences[:, :-1]
    return torch.where(inputs < 0, ~inputs, inputs), sequences[:, 1:]


def document_bounds(tokens: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Return each token's document and position in it, for packed sequences (batch, length).

    The token `end` belongs to the document that it ends. A sequence may begin in the middle of a document.
    """
    ends = tokens == end
    document = ends.cumsum(dim=1) - ends.long()
    place = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    begins = F.pad(ends[:, :-1], (1, 0), value=True)
    return document, place - torch.where(begins, place, 0).cummax(dim=1).values


def bounds(tokens: Tensor, config: ModelConfig) -> tuple[Tensor | None, Tensor | None]:
    """Return each token's document and position, each None where the configuration does not ask for it."""
    if not (config.document_attention or config.reset_positions):
        return None, None
    document, position = document_bounds(tokens, config.end_of_document)
    return document if config.document_attention else None, position if config.reset_positions else None


def mask_of(document: Tensor | None, position: Tensor | None, tokens: Tensor, blockwise: bool) -> Any:
    """Return the mask of tokens that see each other, shape (batch or 1, 1, length, length); None: the plain causal one.

    `blockwise`: as FlexAttention wants it, which skips whole blocks and never holds the mask of all pairs.
    """
    if document is None and position is None:
        return None
    # Without a mask, `transformers` would take positions that begin anew for documents to keep apart.
    length = tokens.shape[1]
    if blockwise:
        return _block_mask(document, length, tokens.device)
    causal_mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
    if document is None:
        return causal_mask[None, None]
    return ((document.unsqueeze(1) == document.unsqueeze(2)) & causal_mask).unsqueeze(1)


def _block_mask(document: Tensor | None, length: int, device: torch.device) -> Any:
    """Return FlexAttention's mask of blocks, from the documents at the ends of each block alone.

    Documents are contiguous. So of two blocks the earlier one is seen where its last token has the document of the
    later one's first, and without a look at its pairs where its first has the document of the later one's last. Torch's
    `create_block_mask` evaluates all pairs, anew for each batch.
    """
    from torch.nn.attention.flex_attention import _DEFAULT_SPARSE_BLOCK_SIZE as SIZE
    from torch.nn.attention.flex_attention import BlockMask

    first_places = torch.arange(0, length, SIZE, device=device)
    last_places = (first_places + SIZE - 1).clamp(max=length - 1)
    blocks = len(first_places)
    earlier_blocks = torch.ones(blocks, blocks, dtype=torch.bool, device=device).tril(-1)[None]
    # Torch masks each pair of a block that the length cuts.
    complete = (first_places + SIZE <= length)[None, :, None]
    visible = full = earlier_blocks
    if document is not None:
        begin, end = document[:, first_places], document[:, last_places]
        visible = earlier_blocks & (end[:, None] == begin[..., None])
        full = earlier_blocks & (begin[:, None] == end[..., None])
    full = full & complete
    partial = (visible & ~full) | torch.eye(blocks, dtype=torch.bool, device=device)
    tables = (*_ordered(partial.unsqueeze(1)), *_ordered(full.unsqueeze(1)))
    return BlockMask.from_kv_blocks(*tables, BLOCK_SIZE=SIZE, mask_mod=sees(document), seq_lengths=(length, length))


def _ordered(choice: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of blocks of each row that are chosen, and the numbers of all, the chosen ones first."""
    order = choice.int().argsort(dim=-1, descending=True, stable=True)
    return choice.sum(-1, dtype=torch.int32), order.to(torch.int32)


def sees(document: Tensor | None) -> Any:
    """Return FlexAttention's rule: a token sees those before it of its own document, and itself."""

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_earlier = query >= key
        return is_earlier if document is None else is_earlier & (document[batch, query] == document[batch, key])

    return rule
