"""The reader of a prepared data set: a sample is a pure function of seed and position."""

from __future__ import annotations

import bisect
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .order import Order, Pool

Tokens = NDArray[np.integer]
Manifest: TypeAlias = Any
"""`trainer.contract.DataManifest`, or what has its fields."""
Shard: TypeAlias = Any
"""`trainer.contract.TokenShard`, or what has its fields."""
Opener = Callable[[Shard], int]
"""Returns a descriptor of a shard's file; may wait for the file."""

OPEN_SHARDS = 512


def spacing(manifest: Manifest, context: int) -> tuple[int, int]:
    """Return the tokens from one sequence's begin to the next one's, and how many of them two sequences share.

    Sequences of text share a token: the last target is the next one's first input. Those of masked data were packed
    whole, for one context. Raises `Refused` for another.
    """
    if not is_masked(manifest):
        return context, 1
    packed_context = manifest.parameters.chat.context
    if packed_context != context:
        sizes = f"packed for {packed_context}, model.context {context}"
        raise Refused("the samples were packed for another context", sizes, "prepare the data again with this context")
    return context + 1, 0


def is_masked(manifest: Manifest) -> bool:
    return bool(manifest.format == 3)


def parted(sequences: Tokens) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the tokens of stored sequences, and which of them the loss counts: of text all."""
    mask = sequences >= 0
    return np.where(mask, sequences, ~sequences).astype(np.int64), mask


class Refused(ValueError):
    """The data cannot be read, or is not what it was taken for."""

    def __init__(self, message: str, finding: object, cure: str) -> None:
        self.what, self.seen, self.cure = message, finding, cure
        super().__init__(f"{message}; seen: {finding}; cure: {cure}")


class NoSuchSources(Refused):
    """Weights are given for other sources than the data has."""


@dataclass
class TokenRow:
    """The shards of one part as one row of tokens, mapped into memory when needed."""

    shards: tuple[Shard, ...]
    dtype: str
    opener: Opener
    keep_open: int = OPEN_SHARDS
    """Number of last used shards that stay mapped and hence stay in the cache."""
    _open: OrderedDict[int, Tokens] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        ends = list(accumulate(shard.tokens for shard in self.shards))
        self.starts, self.tokens = [0, *ends[:-1]], ends[-1] if ends else 0

    def copy_window(self, start: int, window: Tokens) -> None:
        """Fill `window` with the tokens from `start`, across shard boundaries."""
        index, count = bisect.bisect_right(self.starts, start) - 1, 0
        while count < len(window):
            offset = start + count - self.starts[index]
            piece = self._shard(index)[offset : offset + len(window) - count]
            window[count : count + len(piece)] = piece
            count, index = count + len(piece), index + 1

    def shards_of(self, start: int, end: int) -> tuple[Shard, ...]:
        """Return the shards with tokens in [start, end)."""
        begin = bisect.bisect_right(self.starts, start) - 1
        return self.shards[begin : bisect.bisect_left(self.starts, end)]

    def _shard(self, index: int) -> Tokens:
        if (cached := self._open.get(index)) is not None:
            self._open.move_to_end(index)
            return cached
        tokens = self._open[index] = self._map(self.shards[index])
        if len(self._open) > self.keep_open:
            self._open.popitem(last=False)
        return tokens

    def _map(self, shard: Shard) -> Tokens:
        try:
            with os.fdopen(self.opener(shard), "rb") as file:
                array = np.memmap(file, dtype=np.dtype(self.dtype).newbyteorder("<"), mode="r")
        except (OSError, ValueError) as error:
            raise Refused("a token shard cannot be read", f"{shard.file}: {error}", "stage the data again") from error
        # A plain array: slicing a memmap costs several times as much.
        tokens: Tokens = array.view(np.ndarray)
        if len(tokens) != shard.tokens:
            finding = f"{shard.file}: {len(tokens)} tokens, wanted {shard.tokens}"
            raise Refused("a token shard has another size", finding, "stage the data again")
        return tokens


@dataclass(frozen=True)
class Ahead:
    """Shards needed together from `position` on, for about `positions` positions."""

    position: int
    positions: int
    shards: tuple[Shard, ...]


class Reader:
    """Sequences of `context + 1` tokens: inputs and, shifted by one, targets. Raises `Refused`."""

    row: type[TokenRow] = TokenRow

    def __init__(
        self,
        manifest: Manifest,
        opener: Opener,
        context: int,
        seed: int,
        weights: Mapping[str, float] | None = None,
        shuffle_blocks: int = 16,
    ) -> None:
        self.manifest, self.context, self.seed = manifest, context, seed
        shards = [shard for shard in manifest.validation if shard.tokens]
        self._validation = self.row(tuple(shards), manifest.dtype, opener)
        self._stride, self._shared = spacing(manifest, context)
        self.held_out_samples = max(0, (self._validation.tokens - self._shared) // self._stride)
        # A shuffle window's blocks, each in up to two shards; mapped shards cannot leave the cache.
        keep_open = min(OPEN_SHARDS, 2 * shuffle_blocks + 1)
        parts = [
            tuple(s for s in manifest.train if s.source == source.name and s.tokens) for source in manifest.sources
        ]
        self._rows = tuple(self.row(part, manifest.dtype, opener, keep_open) for part in parts)
        counts = [max(0, (row.tokens - self._shared) // self._stride) for row in self._rows]
        self.samples = sum(counts)
        if not self.held_out_samples or not all(counts):
            sizes = {source.name: count for source, count in zip(manifest.sources, counts, strict=True)}
            raise Refused(
                "a part of the data holds less than one sequence",
                f"sequences of {context} tokens: {sizes}, held out {self.held_out_samples}",
                "give more text or a shorter model.context",
            )
        block = max(1, manifest.parameters.shard_tokens // self._stride)
        shares = _shares(manifest, counts, dict(weights or {}))
        self.order = Order(
            [
                Pool(source.name, count, share, block, shuffle_blocks)
                for source, count, share in zip(manifest.sources, counts, shares, strict=True)
            ],
            seed,
        )

    def batch(self, positions: range) -> NDArray[np.int64]:
        """Return the sequences at these positions, shape (len(positions), context + 1), as `parted` takes them."""
        return self.stored(positions).astype(np.int64)

    def stored(self, positions: range) -> Tokens:
        """Return the same in the shards' type, two or four bytes a token."""
        draws = self.order.at(positions)
        tokens = np.empty((len(positions), self.context + 1), dtype=self.manifest.dtype)
        for row, source, sample in zip(tokens, draws.source.tolist(), draws.sample.tolist(), strict=True):
            self._rows[source].copy_window(sample * self._stride, row)
        return tokens

    def held_out(self, sequences: int) -> NDArray[np.int64]:
        """Return sequences spread evenly over the held-out part, always the same; all of them if there are fewer.

        The loss of its first documents alone differs by a nat.
        """
        count = min(sequences, self.held_out_samples)
        tokens = np.empty((count, self.context + 1), dtype=self.manifest.dtype)
        for index, row in enumerate(tokens):
            self._validation.copy_window((index * self.held_out_samples // count) * self._stride, row)
        return tokens.astype(np.int64)

    def ahead(self, position: int) -> Iterator[Ahead]:
        """Yield the shards that positions from `position` on need, window by window, without end."""
        for window in self.order.windows(position):
            row = self._rows[window.source]
            spans = [(part.start * self._stride, part.stop * self._stride + self._shared) for part in window.samples]
            shards = dict.fromkeys(shard for start, end in spans for shard in row.shards_of(start, end))
            yield Ahead(window.position, window.positions, tuple(shards))


def folder_opener(root: Path) -> Opener:
    """Return an opener of the shards in a folder."""
    return lambda shard: os.open(root / shard.file, os.O_RDONLY)


def _shares(manifest: Manifest, counts: list[int], weights: dict[str, float]) -> list[float]:
    """Return the weights of the configuration, else of the manifest, else the numbers of samples."""
    names = [source.name for source in manifest.sources]
    unknown = sorted(set(weights) - set(names))
    if unknown or (weights and len(weights) < len(names)):
        raise NoSuchSources("weights do not match the sources", f"{weights}, sources {names}", "weight each source")
    source_weights = [weights.get(source.name) or source.weight for source in manifest.sources]
    shares = [weight for weight in source_weights if weight]
    return shares if len(shares) == len(names) else [float(count) for count in counts]
