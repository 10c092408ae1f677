"""The ledger of consumed data in every checkpoint's manifest: rows of data positions with a chain of digests."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from pydantic import Field

from trainer.contract.frozen import Frozen

CHAIN_START = hashlib.sha256(b"bivouac ledger 1").hexdigest()
_SUM = 2**64


class Consumed(Frozen):
    """Consecutive steps of one attempt and generation with the same batch, data and order."""

    attempt: int
    generation: int = Field(default=0, exclude_if=lambda number: number == 0)
    """Start of the ranks within the attempt: each restart in place begins a row."""
    world_size: int
    global_batch: int = Field(ge=1)
    """Sequences per step."""
    seed: int
    data_digest: str
    first_step: int = Field(ge=1)
    last_step: int
    first_position: int = Field(ge=0)
    """Data position of the first sequence of `first_step`."""
    chain: str
    """Digest over every step up to `last_step`, in this row and all rows before."""

    @property
    def end_position(self) -> int:
        """One past the last sequence of `last_step`."""
        return self.first_position + (self.last_step - self.first_step + 1) * self.global_batch


def sample_digest(position: int, tokens: bytes) -> int:
    """Return a 64-bit digest of a sequence and its position. The sum over a step does not depend on the world size."""
    digest = hashlib.blake2b(tokens, key=position.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def step_digest(samples: Iterable[int]) -> int:
    return sum(samples) % _SUM


def next_link(chain: str, step: int, position: int, count: int, digest: int) -> str:
    """Return the chain after a step of `count` sequences from `position`; `digest` is the sum of their digests."""
    link = struct.pack("<32sQQQQ", bytes.fromhex(chain), step, position, count, digest % _SUM)
    return hashlib.sha256(link).hexdigest()
