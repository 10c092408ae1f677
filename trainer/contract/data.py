"""The format of a prepared data set: token shards, a tokenizer, and a manifest that was written last."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.contract.frozen import Frozen

DATA_MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.json"
DATA_SUMMARY_NAME = "summary.json"
"""Counts, lengths and samples for the report; no reader needs it."""
DATA_REPORT_NAME = "report.html"


class TokenShard(Frozen):
    """Whole documents in Megatron's indexed format: `file` holds the ids, `.idx` beside it the documents' offsets."""

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


class SourceCounts(Frozen):
    """One source of the mixture: its origin and what was kept of it."""

    name: str
    location: str
    """The name of a folder or file, or the URL; never a path on the machine that prepared it."""
    pattern: str
    weight: float | None = None
    """Share in the mixture, relative to the others; None for its number of samples."""
    licence: str = ""
    origin: str = ""
    files: int
    bytes: int
    """Size of the kept UTF-8 text."""
    documents: int
    tokens: int
    """Training tokens."""
    dropped: dict[str, int] = {}
    """Number of omitted documents by reason."""
    cut: int = Field(default=0, exclude_if=lambda cut: not cut)
    """Samples of prompt and response that lost their end: they were longer than a sequence."""


class Chat(Frozen):
    """How a sample of prompt and response becomes tokens of which only the response's are learned."""

    template: str = Field(min_length=1)
    """The Jinja template that writes a conversation as text, as `apply_chat_template` of transformers does."""
    bos_token: str = ""
    eos_token: str = ""
    """Empty: the template ends no response, and the token that ends a document is learned in its place."""
    context: int = Field(ge=8)
    """Samples are packed whole into sequences of one token more."""


class Parameters(Frozen):
    """Further parameters that determine the data set's bytes."""

    held_out: float = Field(gt=0, lt=1)
    seed: int
    max_files: int | None = Field(default=None, ge=1)
    format: Literal["auto", "text", "jsonl", "parquet", "arrow", "chat", "megatron"] = "auto"
    """Format of the files; auto: by name (.jsonl, .ndjson, .parquet, .arrow, else text; with .gz, .zst, .xz, .bz2).
    chat: JSON lines with `prompt` and `response`, or with `messages`. megatron: token ids in `.bin` and `.idx`."""
    # Left out where it is None, so that the manifests of text, and with them the data's digest, stay as they were.
    chat: Chat | None = Field(default=None, exclude_if=lambda chat: chat is None)
    """Only for the format chat."""
    text_field: str = "text"
    deduplicate: bool = True
    min_characters: int = 1
    max_characters: int | None = None
    max_control_share: float = 0.02
    """Largest share of control characters other than white space; a text with more is binary."""
    max_repeated_lines: float = 1.0
    """Largest share of lines that occurred before in the document (Rae et al. 2021 use 0.3)."""
    min_letters_share: float = 0.0
    """Smallest share of letters and digits among characters but white space; bytes outside ASCII count as letters."""
    document_bytes: int = Field(default=2**22, ge=2**10)
    """Longer texts are split into several documents at a line's end, else at a space."""
    shard_tokens: int = Field(default=2**25, ge=1, le=2**30)
    """At four bytes a token a shard stays under 5 GB, which S3 takes and copies in one call
    (https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html): S3 gives the SHA-256 of
    such an object, but of an object in parts only the SHA-256 of the parts' digests."""

    @model_validator(mode="after")
    def _has_a_template_for_chats(self) -> Self:
        if (self.format == "chat") != (self.chat is not None):
            raise ValueError("the format chat, and it alone, has a chat template and a context")
        return self


class DataManifest(Frozen):
    """Equal input and parameters give equal bytes, on any machine, with any number of cores, after any resume."""

    format: Literal[2, 3] = 2
    """3: masked. A token t that the loss does not count is stored as -1 - t, and sequences do not overlap. A reader
    that knows only 2 refuses it."""
    sources: tuple[SourceCounts, ...]
    parameters: Parameters
    documents: int
    """Kept documents, held-out ones included."""
    held_out_documents: int
    skipped_documents: int
    """Documents that were read and omitted, for any reason."""
    source_bytes: int
    vocabulary: int
    """Size of the tokenizer; a model's `vocabulary` must equal it."""
    end_of_document: int
    """Id of the token that ends every document."""
    beginning_of_document: int | None = Field(default=None, exclude_if=lambda token: token is None)
    """Id of the token that every document begins with; None: none."""
    dtype: Literal["int16", "int32"]
    """int16 up to 32,768 ids. Megatron and DeepSpeed have equal codes for these two types, but not for unsigned ones
    (8 and 6 for uint16)."""
    tokenizer_sha256: str
    train: tuple[TokenShard, ...]
    validation: tuple[TokenShard, ...]
    train_tokens: int
    validation_tokens: int
    counted_tokens: int | None = Field(default=None, exclude_if=lambda counted: counted is None)
    """Training tokens that the loss counts, of masked data."""
    unigram_loss: float
    """Nats per held-out token under the training part's unigram distribution: the loss of a model without context. Of
    masked data both are of the tokens that the loss counts."""

    @property
    def licence(self) -> str:
        """The stated licences of all sources."""
        licences = dict.fromkeys(source.licence for source in self.sources if source.licence)
        return ", ".join(licences)

    @property
    def token_bytes(self) -> int:
        return 2 if self.dtype == "int16" else 4
