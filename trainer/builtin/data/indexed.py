"""Megatron's indexed format: `.bin` holds the documents' ids in order, `.idx` their lengths and offsets.

Layout of `.idx`, little-endian: magic, version (u64), type (u8), sequences (u64), document marks (u64), lengths (i32),
byte offsets (i64), first sequence of each document and one past the last (i64). A document is one sequence here.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_CODES = {"int16": 3, "int32": 4}
"""Megatron and DeepSpeed agree on these codes, but not on those of unsigned types."""


def index_bytes(lengths: NDArray[np.integer], dtype: str) -> bytes:
    """Return the `.idx` of documents with these lengths, in tokens."""
    sizes = np.asarray(lengths, dtype="<i4")
    offsets = np.zeros(len(sizes), dtype="<i8")
    np.cumsum(sizes[:-1], out=offsets[1:])
    offsets *= np.dtype(dtype).itemsize
    head = _HEAD.pack(_MAGIC, 1, _CODES[dtype], len(sizes), len(sizes) + 1)
    return head + sizes.tobytes() + offsets.tobytes() + np.arange(len(sizes) + 1, dtype="<i8").tobytes()
