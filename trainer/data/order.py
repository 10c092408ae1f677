"""The order of samples: a keyed permutation per epoch that is computed, never stored.

A balanced Feistel network over the next even power of two, walked until the value falls into range (cycle walking:
Black and Rogaway, "Ciphers with arbitrary finite domains", 2002), is a bijection for any size.
"""

from __future__ import annotations

import hashlib

_ROUNDS = 4


def sample_at(position: int, samples: int, seed: int) -> int:
    """Index of the sample consumed at a position: a pure function; each epoch visits every sample once."""
    if position < 0 or samples < 1:
        raise ValueError(f"no sample at position {position} of {samples}")
    epoch, offset = divmod(position, samples)
    return permute(offset, samples, f"{seed}:{epoch}".encode())


def permute(value: int, size: int, key: bytes) -> int:
    """Image of `value` under a permutation of `range(size)` chosen by `key`."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    while True:
        value = _feistel(value, half_bits, key)
        if value < size:
            return value


def _feistel(value: int, half_bits: int, key: bytes) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for step in range(_ROUNDS):
        left, right = right, left ^ (_round(right, step, key) & mask)
    return (left << half_bits) | right


def _round(value: int, step: int, key: bytes) -> int:
    digest = hashlib.blake2b(value.to_bytes(8, "little") + bytes([step]), key=key[:64], digest_size=8).digest()
    return int.from_bytes(digest, "little")
