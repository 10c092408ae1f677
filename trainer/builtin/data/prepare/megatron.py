"""Token data that others made in Megatron's indexed format: `.bin` holds ids, `.idx` beside it the documents' bounds.

Two layouts are in the field: MMIDIDX (Megatron-LM, `megatron/core/datasets/indexed_dataset.py`) and TNTIDX, which
Megatron-LM's `--dataset-impl cached` and `lazy` had until 2023 (`megatron/data/indexed_dataset.py`). DeepSpeed gives
types above 5 other numbers than Megatron-LM; the width of an id in the file tells which.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.builtin.data.prepare.inputs import File, change_error
from trainer.errors import DataError

_MAPPED, _CACHED = struct.Struct("<9sQBQQ"), struct.Struct("<8sQQQQQQ")
_TYPES = {(1, 1): "u1", (2, 1): "i1", (3, 2): "<i2", (4, 4): "<i4", (5, 8): "<i8"}
_TYPES |= {(6, 2): "<u2", (7, 4): "<u4", (8, 2): "<u2", (8, 8): "<u8"}
"""(code, bytes of an id) -> type."""


@lru_cache(maxsize=1)
def read_index(file: File) -> tuple[np.dtype[Any], NDArray[np.int64]]:
    """Return the type of the ids in a `.bin`, and the first id of each document and one past the last. Raises
    `DataError` for an index of another layout or another file."""
    assert file.index is not None, "listed with its index"
    with file.index.open() as stream:
        content = stream.read()
    try:
        code, lengths, marks = _mapped(content) if content.startswith(b"MMIDIDX") else _cached(content)
        bounds = np.append(0, np.cumsum(lengths, dtype=np.int64))
        width, remainder = divmod(file.size, max(1, int(bounds[-1])))
        documents = bounds[marks]
        if remainder or documents[0] or documents[-1] != bounds[-1] or (np.diff(documents) < 0).any():
            raise ValueError("its documents do not cover the .bin")
        if (code, width) not in _TYPES:
            raise ValueError(f"no type of ids has code {code} and {width} bytes")
        return np.dtype(_TYPES[code, width]), documents
    except (struct.error, ValueError, IndexError) as error:
        cure = "give the .idx that was written with this .bin"
        raise DataError("an index of token data cannot be read", f"{file.index.place}: {error}", cure) from error


def document_groups(file: File, most_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first document, one past the last, bytes) of groups of documents, each of one document at least."""
    dtype, bounds = read_index(file)
    start = 0
    while start < len(bounds) - 1:
        end = int(np.searchsorted(bounds, bounds[start] + most_bytes // dtype.itemsize, side="right")) - 1
        end = max(end, start + 1)
        yield start, end, int(bounds[end] - bounds[start]) * dtype.itemsize
        start = end


def token_documents(file: File, start: int, stop: int) -> Iterator[NDArray[np.integer]]:
    """Yield the ids of documents `start` to `stop`."""
    dtype, bounds = read_index(file)
    with file.open(int(bounds[start]) * dtype.itemsize) as stream:
        for count in np.diff(bounds[start : stop + 1]):
            content = stream.read(int(count) * dtype.itemsize)
            if len(content) != count * dtype.itemsize:
                raise change_error(file)
            yield np.frombuffer(content, dtype=dtype)


def _mapped(content: bytes) -> tuple[int, NDArray[np.integer], NDArray[np.int64]]:
    _, version, code, sequences, marks = _MAPPED.unpack_from(content)
    if version != 1 or len(content) != _MAPPED.size + 12 * sequences + 8 * marks:
        raise ValueError(f"version {version}, {len(content)} bytes for {sequences} sequences of text alone")
    lengths = np.frombuffer(content, "<i4", sequences, _MAPPED.size)
    return code, lengths, np.frombuffer(content, "<i8", marks, _MAPPED.size + 12 * sequences)


def _cached(content: bytes) -> tuple[int, NDArray[np.integer], NDArray[np.int64]]:
    magic, version, code, _, sequences, sizes, marks = _CACHED.unpack_from(content)
    if (magic, version) != (b"TNTIDX\0\0", 1):
        raise ValueError("neither MMIDIDX nor TNTIDX, version 1")
    numbers = np.frombuffer(content, "<i8", 2 * (sequences + 1) + sizes + marks, _CACHED.size)
    return code, numbers[2 * (sequences + 1) :][:sizes], numbers[len(numbers) - marks :]
