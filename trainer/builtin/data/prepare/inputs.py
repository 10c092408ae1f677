"""The files of a source, local or in S3: listed in a fixed order, opened as streams, checked for changes."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from trainer.contract.recipe import FOREIGN, Source
from trainer.errors import DataError, storage_error, unread

_COMPRESSED = {".gz": "gz", ".zst": "zst", ".xz": "xz", ".bz2": "bz2"}
_LINES, _TABLES = (".jsonl", ".ndjson"), (".parquet", ".arrow")
_TRIES, _PAUSE_S = 5, 0.5
_READ_AHEAD = 2**20


@dataclass(frozen=True)
class File:
    place: str
    """Absolute path or `s3://` URL."""
    name: str
    """Path relative to its source."""
    size: int
    state: tuple[str, ...]
    """State when it was listed, to detect changes."""
    stated: str = "auto"
    index: File | None = None
    """Of token data: the `.idx` beside the `.bin`."""

    @property
    def compression(self) -> str | None:
        return _COMPRESSED.get(PurePosixPath(self.name).suffix.lower())

    @property
    def format(self) -> str:
        """Return text, jsonl, parquet, arrow, chat or megatron: as stated, else by the name."""
        if self.stated != "auto":
            return self.stated
        path = PurePosixPath(self.name.lower())
        suffix = PurePosixPath(path.stem).suffix if self.compression else path.suffix
        return suffix[1:] if suffix in _TABLES else "jsonl" if suffix in _LINES else "text"

    def current_state(self) -> tuple[str, ...] | None:
        """Return the state, None when the file is gone. An object's is fixed: every read requests that version. Raises
        `OSError` where it cannot be seen: that is no change."""
        if self.place.startswith("s3://"):
            return self.state
        try:
            return *_state(os.stat(self.place)), *(self.index.current_state() or () if self.index else ())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, start: int = 0) -> BinaryIO:
        """Open the file at `start`, decompressed; a compressed file always from its beginning."""
        raw = self._raw(start)
        match self.compression:
            case "gz":
                return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
            case "xz":
                return cast(BinaryIO, lzma.LZMAFile(raw))
            case "bz2":
                return cast(BinaryIO, bz2.BZ2File(raw))
            case "zst":
                import zstandard

                reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=True)
                return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, reader), _READ_AHEAD))
        return raw

    def _raw(self, start: int) -> BinaryIO:
        if self.place.startswith("s3://"):
            return cast(BinaryIO, io.BufferedReader(_ObjectStream(self, start), _READ_AHEAD))
        file = open(self.place, "rb")  # noqa: SIM115
        file.seek(start)
        return file


def list_source(source: Source, max_files: int | None, seed: int, form: str = "auto") -> list[File]:
    """Return the matching files, sorted by name; at most `max_files`, chosen by seed.

    Raises `DataError` for a source that is missing, cannot be read, or has no matching file.
    """
    matches = _objects(source) if source.remote else _local(source)
    files = sorted((replace(file, stated=form) for file in matches), key=lambda file: file.name)
    files = _with_indexes(source, files) if form == "megatron" else files
    if not files:
        raise DataError(
            "no file matches", f"{source.pattern} in {source.location}", "correct data.pattern or data.source"
        )
    if max_files is not None and len(files) > max_files:
        sample = sorted(files, key=lambda file: hashlib.sha256(f"{seed}:{file.name}".encode()).digest())[:max_files]
        files = sorted(sample, key=lambda file: file.name)
    return files


def _with_indexes(source: Source, files: list[File]) -> list[File]:
    """Return the files `.bin` of token data, each with its `.idx`. Raises `DataError` for one that has none."""
    index_source = source.model_copy(update={"pattern": "**/*.idx"})
    if source.location.endswith(".bin"):
        index_source = index_source.model_copy(update={"location": f"{source.location.removesuffix('.bin')}.idx"})
    indexes = {file.name.removesuffix(".idx"): file for file in (_objects if source.remote else _local)(index_source)}
    names = [(file, file.name.removesuffix(".bin")) for file in files if file.name.endswith(".bin")]
    if lone_places := [file.place for file, name in names if name not in indexes]:
        detail = f"{len(lone_places)} of {len(names)}, such as {lone_places[0]}"
        raise DataError("token data lack their index", detail, "bring each .bin with its .idx, or narrow data.pattern")
    pairs = [(file, indexes[name]) for file, name in names]
    return [replace(file, index=index, state=(*file.state, *index.state)) for file, index in pairs]


def change_error(file: File) -> DataError:
    return DataError(
        "a data file changed while it was prepared", file.place, "stop whatever writes there, then prepare again"
    )


def _local(source: Source) -> list[File]:
    root = Path(source.location).expanduser()
    if root.is_file():
        status = root.stat()
        return [File(str(root.resolve()), root.name, status.st_size, _state(status))]
    if not root.is_dir():
        cure = "set data.source to an existing folder of text files"
        raise DataError("there is no such data folder", root, cure)
    files = []
    try:
        for path in root.glob(source.pattern):
            if FOREIGN.isdisjoint(path.relative_to(root).parts) and path.is_file():
                status = path.stat()
                name = path.relative_to(root).as_posix()
                files.append(File(str(path.absolute()), name, status.st_size, _state(status)))
    except (NotImplementedError, OSError, RuntimeError, ValueError) as error:
        detail = f"{source.pattern!r} in {root}: {error}"
        cure = "give one relative to the source, such as **/*.txt"
        raise unread(error, DataError("the pattern cannot be used", detail, cure)) from error
    return files


def _state(status: os.stat_result) -> tuple[str, ...]:
    return tuple(map(str, (status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)))


def _objects(source: Source) -> list[File]:
    bucket, _, prefix = source.location.removeprefix("s3://").partition("/")
    pages = _s3().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    rows = _of_s3(lambda: [row for page in pages for row in page.get("Contents", ())], source.location)
    files = []
    for row in rows:
        relative_key = row["Key"].removeprefix(prefix)
        if prefix and not prefix.endswith("/") and relative_key and not relative_key.startswith("/"):
            continue  # `s3://bucket/text` is not `text-old/`
        name = relative_key.lstrip("/") or PurePosixPath(row["Key"]).name
        if row["Size"] and _matches(name, source.pattern) and FOREIGN.isdisjoint(PurePosixPath(name).parts):
            files.append(File(f"s3://{bucket}/{row['Key']}", name, row["Size"], (row["ETag"], str(row["Size"]))))
    return files


def _matches(name: str, pattern: str) -> bool:
    """Match like `Path.glob`: `**/` stands for any number of folders, also none."""
    path = PurePosixPath("/", name)
    return path.match(f"/{pattern}") or (pattern.startswith("**/") and path.match(pattern[3:]))


def _of_s3(call: Callable[[], Any], place: str) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call()
    except (ClientError, BotoCoreError) as error:
        cure = "correct the URL, the credentials or the region"
        raise DataError("the bucket cannot be read", f"{place}: {error}", cure) from error


@lru_cache(maxsize=1)
def _s3() -> Any:
    import boto3

    return boto3.client("s3")


class _ObjectStream(io.RawIOBase):
    """One version of an S3 object as a file, read in one stream that resumes where it broke."""

    def __init__(self, file: File, start: int) -> None:
        self._file, self._at = file, start
        self._bucket, _, self._key = file.place.removeprefix("s3://").partition("/")
        self._body: Any = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        target = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        if target != self._at:
            self._at, self._body = target, None
        return target

    def readinto(self, buffer: Any) -> int:
        for number in range(_TRIES):
            try:
                return self._read_into(buffer)
            except OSError as error:
                self._body, trouble = None, error
                time.sleep(_PAUSE_S * 2**number)
        detail = f"{self._file.place}: {trouble}"
        raise storage_error(trouble, "an object cannot be read", detail, "run the same command again")

    def _read_into(self, buffer: Any) -> int:
        from botocore.exceptions import BotoCoreError, ClientError

        if self._at >= self._file.size:
            return 0
        try:
            if self._body is None:
                byte_range, etag = f"bytes={self._at}-", self._file.state[0]
                answer = _s3().get_object(Bucket=self._bucket, Key=self._key, Range=byte_range, IfMatch=etag)
                self._body = answer["Body"]
            piece = self._body.read(len(buffer))
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in (404, 412):
                raise change_error(self._file) from error
            raise OSError(str(error)) from error
        except BotoCoreError as error:
            raise OSError(str(error)) from error
        if not piece:
            raise OSError(f"ended at {self._at} of {self._file.size} bytes")
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
