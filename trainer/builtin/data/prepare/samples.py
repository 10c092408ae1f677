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


class SampleOutcomes(BaseModel):
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
    is_response = np.zeros(len(ids), dtype=bool)
    for begin, stop in places:
        is_response |= (ends > begin) & (begins < stop)
    if not len(ids) or ids[-1] != end:
        ids, is_response = np.append(ids, end), np.append(is_response, not chat.eos_token)
    if (ids[:-1] == end).any():
        return END_INSIDE
    is_response[0] = False  # of a sequence's first token nothing can be predicted
    return np.where(is_response, ids, ~ids)


def encode_samples(
    tokenizer: Tokenizer, texts: list[str], places: list[Places], end: int, chat: Chat
) -> Iterator[Sample | str]:
    """Yield each text's sample, or the reason why it is none."""
    for encoding, sample_places in zip(tokenizer.encode_batch(texts, add_special_tokens=False), places, strict=True):
        yield tokens_of(encoding, sample_places, end, chat)


class Packer:
    """Packs one part's samples into sequences of one size; what stays free at the end is filled with ends."""

    def __init__(self, part: int, size: int, end: int, losses: SampleOutcomes) -> None:
        self._part, self._size, self._end, self._told = part, size, end, losses
        self._held: list[Sample] = []
        self._tokens = 0

    def add(self, sample: Sample | str) -> Iterator[Sample]:
        """Take a sample; yield those that are packed, in order. A longer one loses its end, as with TRL's `max_length`
        (https://huggingface.co/docs/trl/sft_trainer, "truncated from the right")."""
        if isinstance(sample, str):
            self._told.lose(sample, self._part)
            return
        fits, sample = len(sample) <= self._size, sample[: self._size]
        if (sample < 0).all():
            self._told.lose(NO_RESPONSE if fits else BEYOND_CONTEXT, self._part)
            return
        self._told.cut += not fits
        self._held.append(sample)
        self._tokens += len(sample)
        if self._tokens >= GROUP_TOKENS:
            yield from self.flush()

    def flush(self) -> Iterator[Sample]:
        """Yield what is held, packed; the last sample of each sequence is filled up."""
        samples, self._held, self._tokens = self._held, [], 0
        for indices in pack([len(sample) for sample in samples], self._size):
            yield from (samples[index] for index in indices[:-1])
            free = self._size - sum(len(samples[index]) for index in indices)
            yield np.append(samples[indices[-1]], np.full(free, ~self._end))


def pack(lengths: list[int], size: int) -> list[list[int]]:
    """Return the samples of each sequence: the longest sample first, each where the least stays free (best fit
    decreasing, as TRL's `packing_strategy="bfd"`)."""
    rows = list[list[int]]()
    room = list[tuple[int, int]]()
    for index in sorted(range(len(lengths)), key=lambda sample: -lengths[sample]):
        free, row = size, len(rows)
        if (position := bisect_left(room, (lengths[index], -1))) < len(room):
            free, row = room.pop(position)
        else:
            rows.append([])
        rows[row].append(index)
        if free > lengths[index]:
            insort(room, (free - lengths[index], row))
    return rows
