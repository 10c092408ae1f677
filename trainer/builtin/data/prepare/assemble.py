"""Assembly of shards from units: whole documents, in order, in files of one size; then the total counts."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.builtin.data.prepare.documents import Unit
from trainer.builtin.data.prepare.encode import PARTS, ids_path, read_lengths_of
from trainer.builtin.data.prepare.verdicts import HELD_OUT, TRAIN
from trainer.builtin.data.store import write_whole, writing
from trainer.contract import TokenShard

LENGTH_BUCKETS = 32
"""Buckets of the histogram; bucket n: documents of 2^n to 2^(n+1) - 1 tokens."""
_COPY_BYTES = 8 * 2**20
_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_CODES = {"int16": 3, "int32": 4}
"""Megatron and DeepSpeed agree on these codes, but not on those of unsigned types."""


@dataclass
class Draft:
    """A planned shard: stretches of units' documents."""

    name: str
    part: int
    source: str
    tokens: int = 0
    stretches: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """(unit, first document, one past the last, first token, one past the last)."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Assemble:
    dtype: str
    vocabulary: int
    work: Path
    out: Path
    masked: bool = False
    """Only tokens that the loss counts are counted here."""


def drafts(work: Path, units: list[Unit], sources: list[str], shard_tokens: int) -> Iterator[Draft]:
    """Yield training shards source by source, then held-out shards of all sources together."""
    for part, groups in (
        (TRAIN, [(name, [unit for unit in units if unit.source == index]) for index, name in enumerate(sources)]),
        (HELD_OUT, [("", units)]),
    ):
        number = 0
        for source, members in groups:
            for draft in _cut(work, members, part, shard_tokens):
                yield Draft(f"{PARTS[part]}-{number:05d}", part, source, draft.tokens, draft.stretches)
                number += 1


def assemble(draft: Draft, task: Assemble) -> None:
    """Write a shard, its index, and last its record with counts."""
    digest, counts = hashlib.sha256(), np.zeros(task.vocabulary, dtype=np.int64)
    lengths = [_lengths(task.work, draft.part, unit)[begin:end] for unit, begin, end, _, _ in draft.stretches]
    with writing(task.out / f"{draft.name}.bin", durable=True) as file:
        for unit, _, _, begin, end in draft.stretches:
            tokens = np.memmap(ids_path(task.work, unit, draft.part), dtype=task.dtype, mode="r")[begin:end]
            for start in range(0, len(tokens), _COPY_BYTES):
                piece = np.ascontiguousarray(tokens[start : start + _COPY_BYTES])
                trained_tokens = piece[piece >= 0] if task.masked else piece
                counts += np.bincount(trained_tokens, minlength=task.vocabulary)
                digest.update(piece.data)
                file.write(piece.data)
    index = index_bytes(np.concatenate(lengths), task.dtype)
    write_whole(task.out / f"{draft.name}.idx", index, durable=True)
    shard = TokenShard(
        file=f"{draft.name}.bin",
        source=draft.source,
        tokens=draft.tokens,
        documents=sum(map(len, lengths)),
        sha256=digest.hexdigest(),
        index_sha256=hashlib.sha256(index).hexdigest(),
    )
    buckets = np.bincount(np.log2(np.concatenate(lengths)).astype(np.int64), minlength=LENGTH_BUCKETS)
    write_whole(counts_path(task.work, draft.name), counts.tobytes())
    record = {"shard": shard.model_dump(mode="json"), "lengths": buckets.tolist()}
    write_whole(shard_path(task.work, draft.name), json.dumps(record).encode())


def shard_path(work: Path, name: str) -> Path:
    """Return the path of a shard's record, which is written last: if it exists, the shard is whole."""
    return work / f"shard-{name}.json"


def counts_path(work: Path, name: str) -> Path:
    return work / f"shard-{name}.counts"


@dataclass(frozen=True)
class Whole:
    """All shards and their counts."""

    train: tuple[TokenShard, ...]
    validation: tuple[TokenShard, ...]
    unigram_loss: float
    counted_tokens: int
    """Of the training part."""
    lengths: list[int]
    """Documents by the binary logarithm of their tokens."""


def gather(work: Path, drafts: list[Draft], vocabulary: int) -> Whole:
    shards: dict[int, list[TokenShard]] = {part: [] for part in PARTS}
    counts = {part: np.zeros(vocabulary, dtype=np.int64) for part in PARTS}
    lengths = np.zeros(LENGTH_BUCKETS, dtype=np.int64)
    for draft in drafts:
        record = json.loads(shard_path(work, draft.name).read_bytes())
        shards[draft.part].append(TokenShard.model_validate(record["shard"]))
        counts[draft.part] += np.fromfile(counts_path(work, draft.name), dtype=np.int64)
        lengths += np.array(record["lengths"])
    loss, train_tokens = unigram_loss(counts[TRAIN], counts[HELD_OUT]), int(counts[TRAIN].sum())
    return Whole(tuple(shards[TRAIN]), tuple(shards[HELD_OUT]), loss, train_tokens, [int(length) for length in lengths])


def unigram_loss(train: NDArray[np.int64], validation: NDArray[np.int64]) -> float:
    """Return the cross entropy in nats per token of `validation` under `train`'s add-one smoothed unigram distribution.

    Both are counts by token id.
    """
    weights = train.astype(np.float64) + 1.0
    log_probability = np.log(weights / weights.sum())
    return round(float(-(log_probability * validation).sum() / max(1, validation.sum())), 6)


def _cut(work: Path, units: list[Unit], part: int, limit: int) -> Iterator[Draft]:
    """Yield shards; each ends before the document that would exceed `limit` tokens."""
    draft = Draft("", part, "")
    for unit in units:
        ends = np.cumsum(_lengths(work, part, unit.number), dtype=np.int64)
        first_document = 0
        while first_document < len(ends):
            begin = int(ends[first_document - 1]) if first_document else 0
            end_document = int(np.searchsorted(ends, begin + limit - draft.tokens, side="right"))
            if end_document <= first_document and draft.tokens:
                yield draft
                draft = Draft("", part, "")
                continue
            end_document = max(end_document, first_document + 1)  # one document may be larger than a shard
            stop = int(ends[end_document - 1])
            draft.stretches.append((unit.number, first_document, end_document, begin, stop))
            draft.tokens += stop - begin
            first_document = end_document
    if draft.tokens:
        yield draft


def _lengths(work: Path, part: int, number: int) -> NDArray[np.int32]:
    return read_lengths_of(work, number)[part]


def index_bytes(lengths: NDArray[np.integer], dtype: str) -> bytes:
    """Return the `.idx` of documents with these lengths, in tokens: Megatron's indexed format, of which `.bin` holds
    the documents' ids in order.

    Layout, little-endian: magic, version (u64), type (u8), sequences (u64), document marks (u64), lengths (i32), byte
    offsets (i64), first sequence of each document and one past the last (i64). A document is one sequence here.
    """
    sizes = np.asarray(lengths, dtype="<i4")
    offsets = np.zeros(len(sizes), dtype="<i8")
    np.cumsum(sizes[:-1], out=offsets[1:])
    offsets *= np.dtype(dtype).itemsize
    head = _HEAD.pack(_MAGIC, 1, _CODES[dtype], len(sizes), len(sizes) + 1)
    return head + sizes.tobytes() + offsets.tobytes() + np.arange(len(sizes) + 1, dtype="<i8").tobytes()
