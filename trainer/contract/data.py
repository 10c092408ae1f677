"""What a prepared data set is: a snapshot of token shards, a tokenizer, and a manifest that was written last."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DATA_MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.json"
DATA_SUMMARY_NAME = "summary.json"
"""Counts, lengths and samples for the report; no reader needs it."""
DATA_REPORT_NAME = "report.html"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TokenShard(_Frozen):
    """Whole documents in Megatron's indexed format: `file` holds the ids, the `.idx` beside it where each begins."""

    file: str
    """Path relative to the data folder; little-endian ids of the manifest's `dtype`."""
    source: str = ""
    """Name of the source; empty for held-out shards, which hold documents of all sources."""
    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    sha256: str
    index_sha256: str

    @property
    def index(self) -> str:
        return str(PurePosixPath(self.file).with_suffix(".idx"))


class SourceCounts(_Frozen):
    """One source of the mixture: where it came from and what became of it."""

    name: str
    location: str
    """A folder's or file's name, or the URL: never a path of the machine that prepared it."""
    pattern: str
    weight: float | None = None
    """Share in the mixture, relative to the others; None: by its number of samples."""
    licence: str = ""
    origin: str = ""
    files: int
    bytes: int
    """UTF-8 text that was kept."""
    documents: int
    tokens: int
    """Training tokens."""
    dropped: dict[str, int] = {}
    """Documents by the reason for which they were left out."""


class Parameters(_Frozen):
    """What else shaped the bytes."""

    held_out: float = Field(gt=0, lt=1)
    seed: int
    max_files: int | None = Field(default=None, ge=1)
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    """Of the files; auto: by their names (.jsonl, .ndjson, .parquet, else text; .gz, .zst, .xz, .bz2 behind it)."""
    text_field: str = "text"
    deduplicate: bool = True
    min_characters: int = 1
    max_characters: int | None = None
    max_control_share: float = 0.02
    """Control characters other than white space, of all: more is binary, not text."""
    max_repeated_lines: float = 1.0
    """Lines that occurred before in the same document, of all its lines (Rae et al. 2021 use 0.3)."""
    min_letters_share: float = 0.0
    """Letters and digits, of all characters but white space; every byte outside of ASCII counts as a letter."""
    document_bytes: int = Field(default=2**22, ge=2**10)
    """Longer texts become several documents, cut at a line's end, else at a space."""
    shard_tokens: int = Field(default=2**25, ge=1)


class DataManifest(_Frozen):
    """Same input, same parameters: same bytes, wherever it was prepared, on however many cores, after any resume."""

    format: Literal[2] = 2
    sources: tuple[SourceCounts, ...]
    parameters: Parameters
    documents: int
    """Kept, held-out ones included."""
    held_out_documents: int
    skipped_documents: int
    """Of those that were read, how many were left out, for any reason."""
    source_bytes: int
    vocabulary: int
    """Size of the tokenizer; a model's `vocabulary` must equal it."""
    end_of_document: int
    """Id of the token that ends every document."""
    dtype: Literal["int16", "int32"]
    """int16 up to 32,768 ids. Megatron and DeepSpeed number the unsigned types differently (8 and 6 for uint16), these
    two alike."""
    tokenizer_sha256: str
    train: tuple[TokenShard, ...]
    validation: tuple[TokenShard, ...]
    train_tokens: int
    validation_tokens: int
    unigram_loss: float
    """Nats per held-out token under the unigram distribution of the training part: a model without context gets it."""

    @property
    def licence(self) -> str:
        """Of all sources, as far as they were stated."""
        stated = dict.fromkeys(source.licence for source in self.sources if source.licence)
        return ", ".join(stated)

    @property
    def token_bytes(self) -> int:
        return 2 if self.dtype == "int16" else 4
