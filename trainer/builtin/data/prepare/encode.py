"""Second pass: encode the kept documents as token ids."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.builtin.data.prepare.documents import Piece, Unit, documents
from trainer.builtin.data.prepare.inputs import change_error
from trainer.builtin.data.prepare.samples import Packer, SampleOutcomes, encode_samples
from trainer.builtin.data.prepare.verdicts import HELD_OUT, LEFT_OUT, TRAIN, verdict_path
from trainer.builtin.data.prepare.vocabulary import load_tokenizer
from trainer.builtin.data.store import write_whole, writing
from trainer.contract import TOKENIZER_NAME, Parameters
from trainer.errors import DataError

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
    begin: int | None = None
    """Token that begins a document."""
    vocabulary: int = 0


def encode(unit: Unit, task: Encode) -> None:
    """Write the unit's ids and its documents' lengths, for each part."""
    chat = task.parameters.chat
    tokenizer, losses = _tokenizer(task.work / TOKENIZER_NAME, chat is not None), SampleOutcomes()
    packers = {part: Packer(part, chat.context + 1, task.end, losses) for part in PARTS} if chat else {}
    verdict = np.fromfile(verdict_path(task.work, unit.number), dtype=np.uint8)
    lengths = {part: array("i") for part in PARTS}
    count = 0
    with ExitStack() as stack:
        files = {part: stack.enter_context(writing(ids_path(task.work, unit.number, part))) for part in PARTS}

        def write(part: int, tokens: NDArray[np.integer]) -> None:
            lengths[part].append(len(tokens))
            files[part].write(tokens.astype(task.dtype).tobytes())

        for batch in _batches(unit, task.parameters):
            codes = verdict[count : count + len(batch)].tolist()
            count += len(batch)
            pieces = [(code, piece) for code, piece in zip(codes, batch, strict=False) if code != LEFT_OUT]
            for (code, _), tokens in zip(pieces, _encode(tokenizer, [piece for _, piece in pieces], task), strict=True):
                for sequence in packers[code].add(tokens) if packers else (tokens,):
                    write(code, sequence)
        for part, packer in packers.items():
            for sequence in packer.flush():
                write(part, sequence)
    if count != len(verdict):
        raise change_error(unit.spans[0].file)
    if chat:
        write_whole(told_path(task.work, unit.number), losses.model_dump_json().encode())
    head = np.array([len(lengths[part]) for part in PARTS], dtype="<i8").tobytes()
    write_whole(lengths_path(task.work, unit.number), head + b"".join(lengths[part].tobytes() for part in PARTS))


def lengths_path(work: Path, number: int) -> Path:
    """Return the path of the lengths, which are written last: if it exists, the unit is encoded."""
    return work / f"encoded-{number:06d}.lengths"


def told_path(work: Path, number: int) -> Path:
    """Return the path of the samples' outcome, which only the format chat has."""
    return work / f"encoded-{number:06d}.told"


def ids_path(work: Path, number: int, part: int) -> Path:
    return work / f"encoded-{number:06d}.{PARTS[part]}"


def read_lengths_of(work: Path, number: int) -> dict[int, NDArray[np.int32]]:
    content = lengths_path(work, number).read_bytes()
    counts = np.frombuffer(content, dtype="<i8", count=len(PARTS))
    all_lengths = np.frombuffer(content, dtype="<i4", offset=8 * len(PARTS))
    return dict(zip(PARTS, np.split(all_lengths, np.cumsum(counts)[:-1]), strict=True))


def _batches(unit: Unit, parameters: Parameters) -> Iterator[list[Piece]]:
    """Yield documents in order, in batches whose encodings fit into memory; refused ones are empty."""
    batch, characters = list[Piece](), 0
    for span in unit.spans:
        for piece in documents(span, parameters.text_field, parameters.document_bytes, parameters.chat):
            if batch and characters + len(piece.text) > BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
            batch.append(piece)
            characters += len(piece.text)
    if batch:
        yield batch


def _encode(tokenizer: Tokenizer, pieces: list[Piece], task: Encode) -> Iterator[Any]:
    """Yield each document's tokens; of a sample also the reason in their place, see `samples`."""
    texts = [piece.text for piece in pieces]
    if task.parameters.chat is not None:
        responses = [piece.responses for piece in pieces]
        yield from encode_samples(tokenizer, texts, responses, task.end, task.parameters.chat)
        return
    if task.parameters.format == "megatron":
        yield from (_with_ends(piece, task) for piece in pieces)
        return
    head = [] if task.begin is None else [task.begin]
    if sum(map(len, texts)) <= BATCH_CHARACTERS:
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            yield np.array([*head, *encoding.ids, task.end], dtype=task.dtype)
        return
    for text in texts:
        parts = [tokenizer.encode_batch_fast([piece], add_special_tokens=False)[0].ids for piece in _pieces(text)]
        yield np.array([*head, *(token for part in parts for token in part), task.end], dtype=task.dtype)


def _with_ends(piece: Piece, task: Encode) -> Any:
    """Return ids that others made, between the tokens of a document's beginning and end where they lack them. Raises
    `DataError` for an id that the tokenizer does not have."""
    tokens = np.asarray(piece.tokens, dtype=np.int64)
    if tokens.min() < 0 or tokens.max() >= task.vocabulary:
        detail = f"ids from {tokens.min()} to {tokens.max()}, {task.vocabulary} tokens"
        raise DataError("the token data are of another tokenizer", detail, "give data.tokenizer, as it made them")
    head = [] if task.begin in (None, tokens[0]) else [task.begin]
    return np.array([*head, *tokens, *([] if tokens[-1] == task.end else [task.end])], dtype=task.dtype)


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
def _tokenizer(path: Path, has_template: bool) -> Tokenizer:
    return load_tokenizer(path.read_bytes(), has_template)
