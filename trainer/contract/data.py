"""What a prepared data set is: token shards, a tokenizer, and a manifest that was written last."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

DATA_MANIFEST_NAME = "manifest.json"


class TokenShard(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """Path relative to the data folder; little-endian uint16 token ids."""
    tokens: int = Field(ge=0)
    sha256: str


class DataManifest(BaseModel):
    """Same input, same parameters: same bytes, wherever it was prepared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    source: str
    pattern: str
    max_files: int | None
    held_out: float
    seed: int
    documents: int
    held_out_documents: int
    skipped_documents: int
    """Files that matched but hold no UTF-8 text, or nothing."""
    source_bytes: int
    vocabulary: int
    """Size of the tokenizer; a model's `vocabulary` must equal it."""
    tokenizer_sha256: str
    train: tuple[TokenShard, ...]
    validation: tuple[TokenShard, ...]
    train_tokens: int
    validation_tokens: int
    unigram_loss: float
    """Nats per held-out token under the unigram distribution of the training part: a model without context gets it."""
