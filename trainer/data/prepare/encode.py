"""Second pass: encode the kept documents as token ids."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.contract import TOKENIZER_NAME, Parameters
from trainer.data.prepare.documents import Unit, documents
from trainer.data.prepare.inputs import changed
from trainer.data.prepare.verdicts import HELD_OUT, LEFT_OUT, TRAIN, verdict_path
from trainer.data.prepare.vocabulary import load_tokenizer
from trainer.data.store import write_whole, writing

PIECE_CHARACTERS = 2**18
"""Length of the pieces of a long text: encoding takes some 130 bytes of memory per byte of text."""
BATCH_CHARACTERS = 2**19
PARTS = {TRAIN: "train", HELD_OUT: "validation"}


@dataclass(frozen=True)
class Encode:
    """Parameters of every unit's second pass."""

    parameters: Parameters
    end: int
    dtype: str
    work: Path


def encode(unit: Unit, task: Encode) -> None:
    """Write the unit's ids and its documents' lengths, for each part."""
    tokenizer = _tokenizer(task.work / TOKENIZER_NAME)
    verdict = np.fromfile(verdict_path(task.work, unit.number), dtype=np.uint8)
    lengths = {part: array("i") for part in PARTS}
    seen = 0
    with ExitStack() as stack:
        out = {part: stack.enter_context(writing(ids_path(task.work, unit.number, part))) for part in PARTS}
        for batch in _batches(unit, task.parameters):
            codes = verdict[seen : seen + len(batch)].tolist()
            seen += len(batch)
            kept = [(code, text) for code, text in zip(codes, batch, strict=False) if code != LEFT_OUT]
            for (code, _), tokens in zip(kept, _encoded(tokenizer, [text for _, text in kept], task), strict=True):
                lengths[code].append(len(tokens))
                out[code].write(tokens.tobytes())
    if seen != len(verdict):
        raise changed(unit.spans[0].file)
    head = np.array([len(lengths[part]) for part in PARTS], dtype="<i8").tobytes()
    write_whole(lengths_path(task.work, unit.number), head + b"".join(lengths[part].tobytes() for part in PARTS))


def lengths_path(work: Path, number: int) -> Path:
    """Return the path of the lengths, which are written last: if it exists, the unit is encoded."""
    return work / f"encoded-{number:06d}.lengths"


def ids_path(work: Path, number: int, part: int) -> Path:
    return work / f"encoded-{number:06d}.{PARTS[part]}"


def read_lengths_of(work: Path, number: int) -> dict[int, NDArray[np.int32]]:
    content = lengths_path(work, number).read_bytes()
    counts = np.frombuffer(content, dtype="<i8", count=len(PARTS))
    both = np.frombuffer(content, dtype="<i4", offset=8 * len(PARTS))
    return dict(zip(PARTS, np.split(both, np.cumsum(counts)[:-1]), strict=True))


def _batches(unit: Unit, parameters: Parameters) -> Iterator[list[str]]:
    """Yield documents in order, in batches whose encodings fit into memory; refused ones are empty."""
    batch, held = list[str](), 0
    for span in unit.spans:
        for piece in documents(span, parameters.text_field, parameters.document_bytes):
            if batch and held + len(piece.text) > BATCH_CHARACTERS:
                yield batch
                batch, held = [], 0
            batch.append(piece.text)
            held += len(piece.text)
    if batch:
        yield batch


def _encoded(tokenizer: Tokenizer, texts: list[str], task: Encode) -> Iterator[NDArray[np.integer]]:
    if sum(map(len, texts)) <= BATCH_CHARACTERS:
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            yield np.array([*encoding.ids, task.end], dtype=task.dtype)
        return
    for text in texts:
        parts = [tokenizer.encode_batch_fast([piece], add_special_tokens=False)[0].ids for piece in _pieces(text)]
        yield np.array([*(token for part in parts for token in part), task.end], dtype=task.dtype)


def _pieces(text: str) -> Iterator[str]:
    """Split a text after a line's end, else after a space, else anywhere."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        limit = start + PIECE_CHARACTERS
        cut = max(
            text.rfind("\n", start, limit), text.rfind(" ", start, limit) if "\n" not in text[start:limit] else -1
        )
        end = cut + 1 if cut >= start else limit
        yield text[start:end]
        start = end
    yield text[start:]


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path.read_bytes())
