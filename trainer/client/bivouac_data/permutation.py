"""Keyed permutations of `range(n)`, computed for many values at once and never stored.

A balanced Feistel network over the next even power of two, repeated until the value is in range (cycle walking: Black
and Rogaway, "Ciphers with arbitrary finite domains", 2002), is a bijection for any size. The round function is the
finaliser of SplitMix64 (Steele, Lea, Flood 2014) under keys from BLAKE2b: the aim is mixing, not secrecy.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.uint64]

_ROUNDS = 5
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S31 = np.uint64(27), np.uint64(31)


@lru_cache(maxsize=4096)
def round_keys(label: str) -> tuple[np.uint64, ...]:
    """Return one key per round, and one more for `number_of`."""
    digest = hashlib.blake2b(label.encode(), digest_size=8 * (_ROUNDS + 1)).digest()
    return tuple(np.frombuffer(digest, dtype="<u8"))


def number_of(label: str, size: int) -> int:
    """Return the label's number in `range(below)`."""
    return int(round_keys(label)[_ROUNDS]) % size


def permute(values: Values, size: int, label: str) -> Values:
    """Return the images of `values` under the label's permutation of `range(size)`; `size` up to 2^62."""
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
    for key in keys[:_ROUNDS]:
        mix = (right ^ key) * _FIRST
        mix ^= mix >> _S27
        mix *= _SECOND
        mix ^= mix >> _S31
        left, right = right, left ^ (mix >> drop)
    return (left << bits) | right
