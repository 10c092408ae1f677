"""Samples as tokens of which only the responses' are counted, packed whole into sequences."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from tokenizers import Tokenizer

from trainer.builtin.data.prepare.chat import Places
from trainer.builtin.data.prepare.filters import BEYOND_CONTEXT, END_INSIDE, NO_RESPONSE
from trainer.contract import Chat

Sample = NDArray[np.int64]
"""Token ids; one that is not counted as -1 - id."""
GROUP_TOKENS = 2**22
"""Tokens that are packed together, and held in memory until then."""


class Told(BaseModel):
    """Outcome of a unit's samples, by part of the data."""

    cut: int = 0
    lost: dict[str, dict[int, int]] = {}
    """Reason -> part -> number of samples."""

    def lose(self, reason: str, part: int) -> None:
        by_part = self.lost.setdefault(reason, {})
        by_part[part] = by_part.get(part, 0) + 1


def tokens_of(encoding: Any, places: Places, end: int, chat: Chat) -> Sample | str:
    """Return a sample with its end, which may be longer than a sequence, or the reason why it is none.

    A token counts if any of its characters is a response's. The token that ends a document only keeps samples apart,
    unless the template ends no response: then the model learns to end with it.
    """
    ids = np.array(encoding.ids, dtype=np.int64)
    begins, ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    counted = np.zeros(len(ids), dtype=bool)
    for first, last in places:
        counted |= (ends > first) & (begins < last)
    if not len(ids) or ids[-1] != end:
        ids, counted = np.append(ids, end), np.append(counted, not chat.eos_token)
    if (ids[:-1] == end).any():
        return END_INSIDE
    counted[0] = False  # of a sequence's first token nothing can be predicted
    return np.where(counted, ids, ~ids)


def encoded(
    tokenizer: Tokenizer, texts: list[str], places: list[Places], end: int, chat: Chat
) -> Iterator[Sample | str]:
    """Yield each text's sample, or the reason why it is none."""
    for encoding, where in zip(tokenizer.encode_batch(texts, add_special_tokens=False), places, strict=True):
        yield tokens_of(encoding, where, end, chat)


class Packer:
    """Packs one part's samples into sequences of one size; what stays free at the end is filled with ends."""

    def __init__(self, part: int, size: int, end: int, told: Told) -> None:
        self._part, self._size, self._end, self._told = part, size, end, told
        self._held: list[Sample] = []
        self._tokens = 0

    def add(self, sample: Sample | str) -> Iterator[Sample]:
        """Take a sample; yield those that are packed, in order. A longer one loses its end, as with TRL's `max_length`
        (https://huggingface.co/docs/trl/sft_trainer, "truncated from the right")."""
        if isinstance(sample, str):
            self._told.lose(sample, self._part)
            return
        whole, sample = len(sample) <= self._size, sample[: self._size]
        if (sample < 0).all():
            self._told.lose(NO_RESPONSE if whole else BEYOND_CONTEXT, self._part)
            return
        self._told.cut += not whole
        self._held.append(sample)
        self._tokens += len(sample)
        if self._tokens >= GROUP_TOKENS:
            yield from self.rest()

    def rest(self) -> Iterator[Sample]:
        """Yield what is held, packed; the last sample of each sequence is filled up."""
        held, self._held, self._tokens = self._held, [], 0
        for chosen in packed([len(one) for one in held], self._size):
            yield from (held[index] for index in chosen[:-1])
            free = self._size - sum(len(held[index]) for index in chosen)
            yield np.append(held[chosen[-1]], np.full(free, ~self._end))


def packed(lengths: list[int], size: int) -> list[list[int]]:
    """Return the samples of each sequence: the longest sample first, each where the least stays free (best fit
    decreasing, as TRL's `packing_strategy="bfd"`)."""
    rows = list[list[int]]()
    room = list[tuple[int, int]]()
    for index in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        free, row = size, len(rows)
        if (at := bisect_left(room, (lengths[index], -1))) < len(room):
            free, row = room.pop(at)
        else:
            rows.append([])
        rows[row].append(index)
        if free > lengths[index]:
            insort(room, (free - lengths[index], row))
    return rows
