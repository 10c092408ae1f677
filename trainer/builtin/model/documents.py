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
        from torch.nn.attention.flex_attention import create_block_mask

        batch = 1 if document is None else len(document)
        return create_block_mask(sees(document), batch, None, length, length, device=tokens.device)
    causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
    if document is None:
        return causal[None, None]
    return ((document.unsqueeze(1) == document.unsqueeze(2)) & causal).unsqueeze(1)


def sees(document: Tensor | None) -> Any:
    """Return FlexAttention's rule: a token sees those before it of its own document, and itself."""

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        causal = query >= key
        return causal if document is None else causal & (document[batch, query] == document[batch, key])

    return rule
