"""First pass: every document's digest, length and reason for omission; only a sample of the text is kept."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.builtin.data.prepare.documents import Unit, documents
from trainer.builtin.data.prepare.filters import KEPT, REASONS, judge
from trainer.builtin.data.store import write_whole, writing
from trainer.contract import Parameters

RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("bytes", "<u4"), ("reason", "u1")])
"""One per document, in order; `high` and `low` are the halves of its digest."""
SAMPLE_CHARACTERS = 2**16
"""Most characters of one document in the tokenizer's sample."""
EXCERPT = 400
EXCERPTS = 3
_FLUSH = 2**16
_HALVES = struct.Struct("<QQ")


@dataclass(frozen=True)
class Scan:
    """Parameters of every unit's first pass."""

    parameters: Parameters
    sample_share: float
    """Share of the documents whose text is kept for the tokenizer, chosen by digest."""
    work: Path


def scan(unit: Unit, task: Scan) -> None:
    """Write the unit's records, its sample, and excerpts for the report."""
    rules, limit = task.parameters, int(task.sample_share * 2**64)
    sample: list[tuple[int, str]] = []
    excerpts: dict[str, list[tuple[int, str, str]]] = {}
    rows, count = list[tuple[int, int, int, int]](), 0
    with writing(record_path(task.work, unit.number)) as file:
        for span in unit.spans:
            for piece in documents(span, rules.text_field, rules.document_bytes, rules.chat):
                reason = piece.refused
                if reason is None and piece.tokens is None:
                    reason = judge(piece.text, piece.content, rules)
                high, low = _HALVES.unpack(hashlib.blake2b(piece.content, digest_size=16).digest())
                if reason is None and low < limit:
                    sample.append((count + len(rows), piece.text[:SAMPLE_CHARACTERS]))
                reason_excerpts = excerpts.setdefault(reason or "", [])
                if len(reason_excerpts) < EXCERPTS or low < reason_excerpts[-1][0]:
                    words = piece.text[:EXCERPT] or piece.content[:EXCERPT].decode(errors="replace")
                    reason_excerpts[:] = sorted([*reason_excerpts, (low, span.file.name, words)])[:EXCERPTS]
                rows.append((high, low, len(piece.content), KEPT if reason is None else REASONS.index(reason)))
                if len(rows) == _FLUSH:
                    file.write(np.array(rows, dtype=RECORD).tobytes())
                    rows, count = [], count + len(rows)
        file.write(np.array(rows, dtype=RECORD).tobytes())
        write_whole(sample_path(task.work, unit.number), json.dumps(sample).encode())
        write_whole(excerpt_path(task.work, unit.number), json.dumps(excerpts).encode())


def record_path(work: Path, number: int) -> Path:
    """Return the path of the records, which are written last: if it exists, the unit is scanned."""
    return work / f"scan-{number:06d}.records"


def sample_path(work: Path, number: int) -> Path:
    return work / f"scan-{number:06d}.sample"


def excerpt_path(work: Path, number: int) -> Path:
    return work / f"scan-{number:06d}.excerpts"


def read_records(work: Path, number: int) -> NDArray[np.void]:
    return np.fromfile(record_path(work, number), dtype=RECORD)
