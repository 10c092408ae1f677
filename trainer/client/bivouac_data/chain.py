"""The digests of the ledger, as `trainer.contract.ledger` defines them; a test holds them equal."""

from __future__ import annotations

import hashlib
import struct

CHAIN_START = hashlib.sha256(b"bivouac ledger 1").hexdigest()
_SUM = 2**64


def sample_digest(position: int, tokens: bytes) -> int:
    digest = hashlib.blake2b(tokens, key=position.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def next_link(chain: str, step: int, position: int, count: int, digest: int) -> str:
    link = struct.pack("<32sQQQQ", bytes.fromhex(chain), step, position, count, digest % _SUM)
    return hashlib.sha256(link).hexdigest()
