"""Reading documents from files in bounded memory, in units of work that do not depend on the number of workers."""

from __future__ import annotations

import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from numpy.typing import NDArray

from trainer.builtin.data.prepare.chat import Places, Unfit, render
from trainer.builtin.data.prepare.filters import BAD_RECORD, EMPTY, LINE_TOO_LONG, NOT_UTF8
from trainer.builtin.data.prepare.inputs import File, change_error
from trainer.builtin.data.prepare.megatron import document_groups, token_documents
from trainer.builtin.data.prepare.tables import arrow_of, parquet_of
from trainer.contract import Chat
from trainer.errors import DataError, unread

UNIT_BYTES = 8 * 2**20
LINES = ("jsonl", "chat")
"""Formats of one JSON object a line."""
LINE_BYTES = 64 * 2**20
"""A JSON line is parsed as a whole: larger lines are omitted and counted."""
_CUT_WITHIN = 2**16
"""Greatest distance from a text's limit to the cut at a line's or a word's end before it."""
_ROWS = 256
_LOOKS = 16
"""Files whose ends are read at once."""


class Piece(NamedTuple):
    """A document, or the reason why a piece of input is none."""

    text: str
    content: bytes
    """The text in UTF-8; only its beginning if it is refused."""
    refused: str | None = None
    responses: Places = ()
    """Of a sample of prompt and response."""
    tokens: NDArray[Any] | None = None
    """Of token data, whose `text` is only their beginning in digits."""


@dataclass(frozen=True)
class Span:
    """Part of a file: bytes, row groups of Parquet, or (`stop` None) all of it."""

    file: File
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Unit:
    """A worker's unit of work, from one source."""

    number: int
    source: int
    spans: tuple[Span, ...]
    bytes: int
    """Size of the input, for progress."""

    def __str__(self) -> str:
        span = self.spans[0]
        return f"{span.file.place} from {'row group' if span.file.format == 'parquet' else 'byte'} {span.start}"


@dataclass
class _At:
    """Where a file is read, for errors."""

    lines: int = 0
    """Lines, or rows of Parquet, that were read of the span."""


def units_of(files_by_source: list[list[File]], document_bytes: int) -> list[Unit]:
    """Split files into units; equal files give equal units."""
    units: list[Unit] = []
    for source, files in enumerate(files_by_source):
        unit_spans: list[Span] = []
        size = 0
        for span, count in _all_spans(files, document_bytes):
            if unit_spans and size + count > UNIT_BYTES:
                units.append(Unit(len(units), source, tuple(unit_spans), size))
                unit_spans, size = [], 0
            unit_spans.append(span)
            size += count
        units.append(Unit(len(units), source, tuple(unit_spans), size))
    return units


def documents(span: Span, text_field: str, document_bytes: int, chat: Chat | None = None) -> Iterator[Piece]:
    """Yield the documents of a span, in order. Raises `DataError` for a file that is gone, changed or unreadable."""
    file, read = span.file, _At()
    if file.current_state() != file.state:
        raise change_error(file)
    try:
        if file.format in ("parquet", "arrow"):
            pieces = _rows(span, text_field, read)
        elif file.format == "jsonl":
            pieces = _records(span, read, lambda row, line: _field(row, line, text_field))
        elif chat is not None:
            pieces = _records(span, read, lambda row, line: _sample(row, line, chat))
        elif file.format == "megatron":
            pieces = map(_tokens, token_documents(file, span.start, span.stop or 0))
        else:
            yield from _texts(span, document_bytes)
            pieces = iter(())
        for piece in pieces:
            if piece.refused or piece.responses or piece.tokens is not None or len(piece.content) <= document_bytes:
                yield piece
            else:
                yield from (_decode(part) for part in _parts(piece.content, document_bytes))
    except _damage() as error:
        # Errors from truncated or damaged content have no path.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        detail = f"{file.place}{_location(span, read)}: {reason}"
        refusal = DataError("a data file cannot be read", detail, "repair it or its permissions")
        # The decompressors raise `OSError` without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise unread(error, refusal) from error
        raise refusal from error
    if file.current_state() != file.state:
        raise change_error(file)


def _damage() -> tuple[type[Exception], ...]:
    """Return the errors that decompressors and Parquet raise for damaged content."""
    import pyarrow
    import zstandard

    return OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, pyarrow.ArrowException


def _location(span: Span, position: _At) -> str:
    """Return the place in the file that follows what was read."""
    if span.file.format == "parquet":
        return f", row group {span.start}, row {position.lines + 1}"
    if span.file.format not in LINES:
        return ""
    return f", line {position.lines + 1}" + (f" after byte {span.start}" if span.start else "")


def _all_spans(files: list[File], document_bytes: int) -> Iterator[tuple[Span, int]]:
    """Yield the spans of all files, in order; the ends of several Parquet files are read at once."""
    with ThreadPoolExecutor(_LOOKS) as pool:
        for spans in pool.map(lambda file: list(_spans(file, document_bytes)), files):
            yield from spans


def _spans(file: File, document_bytes: int) -> Iterator[tuple[Span, int]]:
    if file.format in ("parquet", "megatron"):
        groups = _row_groups(file) if file.format == "parquet" else document_groups(file, UNIT_BYTES)
        yield from ((Span(file, start, stop), size) for start, stop, size in groups)
        return
    step = UNIT_BYTES if file.format in LINES else max(document_bytes, UNIT_BYTES // document_bytes * document_bytes)
    if file.compression or file.format == "arrow" or file.size <= step:
        yield Span(file), file.size
        return
    for start in range(0, file.size, step):
        stop = min(start + step, file.size)
        yield Span(file, start, stop), stop - start


def _texts(span: Span, document_bytes: int) -> Iterator[Piece]:
    """Yield a text file as one document, or as several if it exceeds the limit."""
    with span.file.open() as file:
        if span.file.compression:
            yield from map(_decode, _stream_parts(file, document_bytes))
            return
        stop = span.file.size if span.stop is None else span.stop
        # Cut near multiples of the limit, so that both neighbouring spans find the same cut.
        start = _cut_before(file, span.start)
        for nominal in [*range(span.start + document_bytes, stop, document_bytes), stop]:
            end = _cut_before(file, nominal) if nominal < span.file.size else nominal
            file.seek(start)
            yield _decode(_exactly(file, end - start, span.file))
            start = end


def _exactly(file: BinaryIO, count: int, source: File) -> bytes:
    content = file.read(count)
    if len(content) != count:
        raise change_error(source)
    return content


def _cut_before(file: BinaryIO, nominal: int) -> int:
    if nominal == 0:
        return 0
    begin = max(0, nominal - _CUT_WITHIN)
    file.seek(begin)
    return begin + _last_cut(file.read(nominal - begin))


def _stream_parts(file: BinaryIO, document_bytes: int) -> Iterator[bytes]:
    data = b""
    while True:
        # The rest of a cut may fill the limit already: then an empty read is not the file's end.
        chunk = file.read(document_bytes - len(data)) if len(data) < document_bytes else b""
        if not chunk and len(data) < document_bytes:
            if data:
                yield data
            return
        data += chunk
        if len(data) == document_bytes:
            ahead = file.read(1)
            if not ahead:
                yield data
                return
            cut = (
                len(data) - _CUT_WITHIN + _last_cut(data[-_CUT_WITHIN:]) if len(data) > _CUT_WITHIN else _last_cut(data)
            )
            yield data[:cut]
            data = data[cut:] + ahead


def _parts(content: bytes, document_bytes: int) -> Iterator[bytes]:
    start = 0
    while len(content) - start > document_bytes:
        window = content[max(start, start + document_bytes - _CUT_WITHIN) : start + document_bytes]
        end = start + document_bytes - len(window) + _last_cut(window)
        yield content[start:end]
        start = end
    yield content[start:]


def _last_cut(window: bytes) -> int:
    """Return the cut: after the last line's end, else after the last space, else between two characters."""
    for mark in (b"\n", b" "):
        if (mark_index := window.rfind(mark)) >= 0:
            return mark_index + 1
    for offset in range(1, min(4, len(window)) + 1):
        lead = window[-offset]
        if lead < 0x80 or lead >= 0xC0:
            complete = lead < 0x80 or offset >= (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4)
            return len(window) - (0 if complete else offset) or len(window)
    return len(window)


def _records(span: Span, read: _At, make_piece: Callable[[Any, bytes], Piece]) -> Iterator[Piece]:
    """Yield documents from JSON lines; a line belongs to the span in which it begins."""
    stop = None if span.file.compression else span.stop
    with span.file.open(max(0, span.start - 1)) as file:
        offset = max(0, span.start - 1)
        if offset or span.start:
            offset += _skip_line(file)
        while stop is None or offset < stop:
            line = file.readline(LINE_BYTES + 1)
            if not line:
                return
            offset += len(line)
            read.lines += 1
            if len(line) > LINE_BYTES:
                if not line.endswith(b"\n"):
                    offset += _skip_line(file)
                yield Piece("", line[:1000], LINE_TOO_LONG)
            elif not line.isspace():
                yield _record(line, make_piece)


def _skip_line(file: BinaryIO) -> int:
    count = 0
    while piece := file.readline(2**20):
        count += len(piece)
        if piece.endswith(b"\n"):
            break
    return count


def _record(line: bytes, make_piece: Callable[[Any, bytes], Piece]) -> Piece:
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        return Piece("", line[:1000], NOT_UTF8)
    except (ValueError, RecursionError):
        return Piece("", line[:1000], BAD_RECORD)
    return make_piece(row, line)


def _field(row: Any, line: bytes, text_field: str) -> Piece:
    return _text_of(row.get(text_field) if isinstance(row, dict) else None, line)


def _sample(row: Any, line: bytes, chat: Chat) -> Piece:
    try:
        text, responses = render(row, chat)
    except Unfit as unfit:
        return Piece("", line[:1000], unfit.reason)
    return _text_of(text, line)._replace(responses=responses)


def _text_of(value: Any, line: bytes) -> Piece:
    if not isinstance(value, str):
        return Piece("", line[:1000], BAD_RECORD)
    try:
        return Piece(value, value.encode())
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write and UTF-8 cannot
        return Piece("", line[:1000], NOT_UTF8)


def _decode(content: bytes) -> Piece:
    try:
        return Piece(content.decode(), content)
    except UnicodeDecodeError:
        return Piece("", content[:1000], NOT_UTF8)


def _tokens(tokens: NDArray[Any]) -> Piece:
    refusal = None if len(tokens) else EMPTY
    return Piece(" ".join(map(str, tokens[:_ROWS])), tokens.astype("<i4").tobytes(), refusal, (), tokens)


def _row_groups(file: File) -> Iterator[tuple[int, int, int]]:
    table = parquet_of(file)
    groups = table.metadata.num_row_groups
    for index in range(groups):
        yield index, index + 1, max(1, file.size // groups)


def _rows(span: Span, text_field: str, read: _At) -> Iterator[Piece]:
    if span.file.format == "arrow":
        batches = arrow_of(span.file)
        names = batches.schema.names
    else:
        table = parquet_of(span.file)
        names = table.schema_arrow.names
        batches = table.iter_batches(batch_size=_ROWS, row_groups=[span.start], columns=[text_field])
    if text_field not in names:
        detail = f"{span.file.place} has {', '.join(names)}"
        raise DataError(f"there is no column {text_field!r}", detail, "name the column of text with --text-field")
    for batch in batches:
        for value in batch.column(text_field):
            read.lines += 1
            yield _text_of(value.as_py(), b"")
