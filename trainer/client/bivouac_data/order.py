"""The order of samples: a pure function of seed and position, without stored state.

Position -> source by weight -> number of earlier draws from that source -> epoch and offset in it -> sample. Each part
is arithmetic: position 10^12 costs as much as position 0. World size and micro batch have no influence.

Sources are interleaved over rounds of 2^16 positions in bit-reversed order (van der Corput 1935): any range of
positions holds each source by its weight, to within a few samples. An epoch visits every sample of a source once. A
source larger than a shuffle window is visited in windows of whole blocks, so that a node needs few shards at a time:
blocks are permuted over the whole epoch, samples within their window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_ROUND_BITS = 16
ROUND = 1 << _ROUND_BITS
"""Positions over which the shares of the sources are exact."""
_ROUNDS_KEPT = 4
"""Cached rounds of a mixture; each takes 1 MiB and a few milliseconds to compute."""


Values = NDArray[np.uint64]

_CIPHER_ROUNDS = 5
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S31 = np.uint64(27), np.uint64(31)


@lru_cache(maxsize=4096)
def round_keys(label: str) -> tuple[np.uint64, ...]:
    """Return one key per round, and one more for `number_of`."""
    digest = hashlib.blake2b(label.encode(), digest_size=8 * (_CIPHER_ROUNDS + 1)).digest()
    return tuple(np.frombuffer(digest, dtype="<u8"))


def number_of(label: str, size: int) -> int:
    """Return the label's number in `range(size)`."""
    return int(round_keys(label)[_CIPHER_ROUNDS]) % size


def permute(values: Values, size: int, label: str) -> Values:
    """Return the images of `values` under the label's permutation of `range(size)`; `size` up to 2^62.

    A balanced Feistel network over the next even power of two, repeated until the value is in range (cycle walking:
    Black and Rogaway, "Ciphers with arbitrary finite domains", 2002), is a bijection for any size. The round function
    is the finaliser of SplitMix64 (Steele, Lea, Flood 2014) under keys from BLAKE2b: the aim is mixing, not secrecy.
    """
    if size < 2:
        return np.zeros_like(values)
    half, keys = max(1, ((size - 1).bit_length() + 1) // 2), round_keys(label)
    images = _feistel(values, half, keys)
    while True:
        outside = np.flatnonzero(images >= np.uint64(size))
        if not len(outside):
            return images
        images[outside] = _feistel(images[outside], half, keys)


def _feistel(values: Values, half: int, keys: tuple[np.uint64, ...]) -> Values:
    bits, mask, drop = np.uint64(half), np.uint64((1 << half) - 1), np.uint64(64 - half)
    left, right = values >> bits, values & mask
    for key in keys[:_CIPHER_ROUNDS]:
        mix = (right ^ key) * _FIRST
        mix ^= mix >> _S27
        mix *= _SECOND
        mix ^= mix >> _S31
        left, right = right, left ^ (mix >> drop)
    return (left << bits) | right


@dataclass(frozen=True)
class Pool:
    """One source of the order."""

    name: str
    samples: int
    weight: float
    block: int
    """Consecutive samples that are fetched together."""
    blocks_at_once: int
    """Blocks whose samples are shuffled together."""


@dataclass(frozen=True)
class Drawn:
    """Source, sample and epoch of each position."""

    source: NDArray[np.int64]
    sample: NDArray[np.int64]
    epoch: NDArray[np.int64]


@dataclass(frozen=True)
class ShuffleWindow:
    """Samples of one source that are shuffled together and hence needed at the same time."""

    source: int
    position: int
    """First position that needs it, by its source's weight; in a mixture a source is ahead of its weight by at most a
    few samples. It is read over `positions` positions."""
    positions: int
    samples: tuple[range, ...]


class Order:
    def __init__(self, pools: Sequence[Pool], seed: int) -> None:
        if not pools or any(pool.samples < 1 for pool in pools):
            raise ValueError("every source needs a sample")
        self.pools, self._quotas = tuple(pools), quotas([pool.weight for pool in pools])
        self._ends = np.cumsum(self._quotas)
        self._seed = seed
        self._walks = [_Walk(pool, seed) for pool in pools]
        self._mix = lru_cache(maxsize=_ROUNDS_KEPT)(self._mix_of)

    def at(self, positions: range) -> Drawn:
        """Return the samples at these positions."""
        places = np.arange(positions.start, positions.stop, positions.step, dtype=np.uint64)
        source, draw = self._draws(places)
        sample, epoch = np.empty(len(places), dtype=np.int64), np.empty(len(places), dtype=np.int64)
        for index, walk in enumerate(self._walks):
            selection = slice(None) if len(self._walks) == 1 else np.flatnonzero(source == index)
            if len(self._walks) == 1 or len(selection):  # type: ignore[arg-type]
                sample[selection], epoch[selection] = walk.samples_at(draw[selection])
        return Drawn(source, sample, epoch)

    def windows(self, position: int) -> Iterator[ShuffleWindow]:
        """Yield the windows that positions from `position` on need, in the order of need, without end."""
        walkers = [walk.windows(self._drawn_before(position, source)) for source, walk in enumerate(self._walks)]
        pending = [next(walker) for walker in walkers]
        while True:
            begins = [draw * ROUND // quota for (draw, _, _), quota in zip(pending, self._quotas, strict=True)]
            index = begins.index(min(begins))
            _, draws, samples = pending[index]
            yield ShuffleWindow(index, begins[index], draws * ROUND // self._quotas[index], tuple(samples))
            pending[index] = next(walkers[index])

    def _draws(self, places: Values) -> tuple[NDArray[np.int64], Values]:
        """Return each position's source and the number of earlier draws from that source."""
        if len(self.pools) == 1:
            return np.zeros(len(places), dtype=np.int64), places
        rounds, offset = places >> np.uint64(_ROUND_BITS), places & np.uint64(ROUND - 1)
        source, draw = np.empty(len(places), dtype=np.int64), np.empty(len(places), dtype=np.uint64)
        for number in np.unique(rounds):
            selection = rounds == number
            mix = self._mix(int(number))
            source[selection], draw[selection] = mix.source[offset[selection]], mix.draw[offset[selection]]
        return source, draw

    def _mix_of(self, number: int) -> _Mix:
        mask = np.uint64(number_of(f"{self._seed}:mix:{number}", ROUND))
        slot = _REVERSED[np.arange(ROUND, dtype=np.uint64) ^ mask]
        source = np.searchsorted(self._ends, slot.astype(np.int64), side="right").astype(np.int64)
        draw = np.empty(ROUND, dtype=np.uint64)
        for index, quota in enumerate(self._quotas):
            # In the order of positions, so that consecutive draws are adjacent.
            draw[source == index] = np.arange(number * quota, (number + 1) * quota, dtype=np.uint64)
        return _Mix(source, draw)

    def _drawn_before(self, position: int, index: int) -> int:
        """Return the number of draws from a source before a position."""
        if len(self.pools) == 1:
            return position
        number, offset = position >> _ROUND_BITS, position & (ROUND - 1)
        return number * self._quotas[index] + int((self._mix(number).source[:offset] == index).sum())


@dataclass(frozen=True)
class _Mix:
    """A round of a mixture, by position within it."""

    source: NDArray[np.int64]
    draw: Values


class _Walk:
    """The samples of one source, epoch after epoch."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self._size, self._block, self._label = pool.samples, pool.block, f"{seed}:{pool.name}"
        blocks = pool.samples // pool.block
        self._windowed = blocks > pool.blocks_at_once
        self._blocks = blocks if self._windowed else 0
        self._full = self._blocks * pool.block
        self._window = pool.blocks_at_once * pool.block

    def samples_at(self, draws: Values) -> tuple[Values, Values]:
        """Return sample and epoch of these draws."""
        epoch, offset = np.divmod(draws, np.uint64(self._size))
        if not self._windowed:
            return _by_key(epoch, offset, lambda key, part: permute(part, self._size, f"{self._label}:{key}")), epoch
        sample = _by_key(epoch, offset, self._in_epoch)
        return sample, epoch

    def _in_epoch(self, epoch: int, offset: Values) -> Values:
        samples = np.empty_like(offset)
        tail = offset >= np.uint64(self._full)
        ends = permute(offset[tail] - np.uint64(self._full), self._size - self._full, f"{self._label}:{epoch}:tail")
        samples[tail] = ends + np.uint64(self._full)
        window, inner = np.divmod(offset[~tail], np.uint64(self._window))
        samples[~tail] = _by_key(window, inner, lambda key, part: self._in_window(epoch, key, part))
        # Rotated, so that the samples that fill no whole block differ between epochs.
        return (samples + np.uint64(self._turn(epoch))) % np.uint64(self._size)

    def _in_window(self, epoch: int, window: int, inner: Values) -> Values:
        blocks = self._blocks_of(window)
        place = permute(inner, len(blocks) * self._block, f"{self._label}:{epoch}:{window}")
        slot, offset = np.divmod(place, np.uint64(self._block))
        block = permute(slot + np.uint64(blocks.start), self._blocks, f"{self._label}:{epoch}:blocks")
        return block * np.uint64(self._block) + offset

    def _blocks_of(self, window: int) -> range:
        at_once = self._window // self._block
        return range(window * at_once, min((window + 1) * at_once, self._blocks))

    def _turn(self, epoch: int) -> int:
        return number_of(f"{self._label}:{epoch}:turn", self._size)

    def windows(self, draw: int) -> Iterator[tuple[int, int, list[range]]]:
        """Yield (first draw, number of draws, ranges of samples) of the window of `draw` and of all later ones."""
        epoch, offset = divmod(draw, self._size)
        while True:
            begin = epoch * self._size
            if not self._windowed:
                yield begin, self._size, [range(self._size)]
            else:
                for window in range(min(offset, self._full) // self._window, -(-self._full // self._window)):
                    yield begin + window * self._window, *self._window_samples(epoch, window)
                start = (self._full + self._turn(epoch)) % self._size
                count = self._size - self._full
                yield begin + self._full, count, list(_wrap(start, count, self._size))
            epoch, offset = epoch + 1, 0

    def _window_samples(self, epoch: int, window: int) -> tuple[int, list[range]]:
        slots = np.array(self._blocks_of(window), dtype=np.uint64)
        begins = permute(slots, self._blocks, f"{self._label}:{epoch}:blocks") * np.uint64(self._block)
        starts = [(int(begin) + self._turn(epoch)) % self._size for begin in begins]
        parts = [part for start in starts for part in _wrap(start, self._block, self._size)]
        return len(slots) * self._block, parts


def quotas(weights: Sequence[float]) -> list[int]:
    """Return whole shares of a round by largest remainder; every source gets at least one."""
    total = sum(weights)
    if not all(weight > 0 for weight in weights):
        raise ValueError("weights are positive")
    exact = [max(1.0, weight / total * ROUND) for weight in weights]
    scale = (ROUND - len(exact)) / max(sum(share - 1 for share in exact), 1e-9)
    exact = [1 + (share - 1) * scale for share in exact] if len(exact) > 1 else [float(ROUND)]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda source: (counts[source] - exact[source], source))
    for source in by_remainder[: ROUND - sum(counts)]:
        counts[source] += 1
    return counts


def _by_key(keys: Values, values: Values, function: object) -> Values:
    """Apply `function(key, values)` to each group of equal keys; a batch has one or two."""
    assert callable(function)
    if not len(keys):
        return values
    if keys[0] == keys[-1] and (keys == keys[0]).all():
        return function(int(keys[0]), values)
    result = np.empty_like(values)
    for key in np.unique(keys):
        selection = keys == key
        result[selection] = function(int(key), values[selection])
    return result


def _wrap(start: int, count: int, size: int) -> Iterator[range]:
    if count:
        yield range(start, min(start + count, size))
    if start + count > size:
        yield range(0, start + count - size)


def _reversed_bits() -> NDArray[np.uint64]:
    value, bits = np.arange(ROUND, dtype=np.uint64), np.zeros(ROUND, dtype=np.uint64)
    for _ in range(_ROUND_BITS):
        bits = (bits << np.uint64(1)) | (value & np.uint64(1))
        value >>= np.uint64(1)
    return bits


_REVERSED = _reversed_bits()
