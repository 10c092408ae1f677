"""The data set of a configuration: its manifest and shards verified, and a reader that raises the trainer's errors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from trainer.client.bivouac_data import reader as plain
from trainer.client.bivouac_data.reader import NoSuchSources, Opener, Refused, Tokens
from trainer.contract import DATA_MANIFEST_NAME, DataManifest, TokenShard
from trainer.contract.ledger import sample_digest
from trainer.errors import ConfigError, DataError, TrainerError, unread


class TokenRow(plain.TokenRow):
    def _map(self, shard: TokenShard) -> Tokens:
        try:
            return super()._map(shard)
        except Refused as refused:
            raise _as_trainer_error(refused) from refused.__cause__


class Reader(plain.Reader):
    """Sequences of `context + 1` tokens: inputs and, shifted by one, targets. Raises `DataError`, `StorageError` and,
    for weights of other sources, `ConfigError`."""

    row = TokenRow

    def __init__(
        self,
        manifest: DataManifest,
        opener: Opener,
        context: int,
        seed: int,
        weights: Mapping[str, float] | None = None,
        shuffle_blocks: int = 16,
    ) -> None:
        try:
            super().__init__(manifest, opener, context, seed, weights, shuffle_blocks)
        except Refused as refused:
            raise _as_trainer_error(refused) from refused.__cause__

    def digests(self, positions: range, rows: Tokens) -> list[int]:
        """Return the ledger's digest of each sequence."""
        return [sample_digest(position, row.tobytes()) for position, row in zip(positions, rows, strict=True)]


def _as_trainer_error(source_error: Refused) -> TrainerError:
    kind = ConfigError if isinstance(source_error, NoSuchSources) else DataError
    refusal, cause = kind(source_error.what, source_error.seen, source_error.cure), source_error.__cause__
    return unread(cause, refusal) if isinstance(cause, OSError) else refusal


def check_vocabulary(manifest: DataManifest, vocabulary: int, or_fewer: bool = False) -> None:
    """Raise `DataError` if the data's tokens are not the model's. `or_fewer`: the model may know more."""
    if manifest.vocabulary != vocabulary and not (or_fewer and manifest.vocabulary < vocabulary):
        raise DataError(
            "model and tokenizer differ in size",
            f"model.vocabulary {vocabulary}, tokenizer {manifest.vocabulary}",
            "set model.vocabulary to the tokenizer's size or prepare the data again",
        )


def load_manifest(root: Path, digest: str) -> DataManifest:
    """Read the manifest at `root`; an empty digest accepts any. Raises `DataError`, and `StorageError` for errors of
    the mount."""
    path = root / DATA_MANIFEST_NAME
    try:
        return read_manifest(path.read_bytes(), digest)
    except OSError as error:
        detail = f"{path}: {error.strerror}"
        raise unread(error, DataError("there is no prepared data", detail, "stage the prepared data")) from error


def read_manifest(content: bytes, digest: str) -> DataManifest:
    """Parse a manifest; an empty digest accepts any. Raises `DataError`."""
    actual_digest = hashlib.sha256(content).hexdigest()
    try:
        manifest = DataManifest.model_validate_json(content)
    except ValidationError as error:
        raise DataError("the data manifest is damaged", str(error), "stage the prepared data again") from error
    if digest and actual_digest != digest:
        raise DataError(
            "this is not the data of the configuration", f"manifest {actual_digest}, wanted {digest}", "stage that data"
        )
    return manifest


def verify_shards(root: Path, manifest: DataManifest) -> None:
    """Verify every file's digest. Raises `DataError` for the first missing or damaged one, `StorageError` if storage
    fails."""
    for shard in (*manifest.train, *manifest.validation):
        _verify(root, shard)


def _verify(root: Path, shard: TokenShard) -> None:
    for name, digest in ((shard.file, shard.sha256), (shard.index, shard.index_sha256)):
        try:
            with (root / name).open("rb") as file:
                fact = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            fact = f"{name}: {error.strerror}"
            raise unread(error, DataError("a token shard is missing", fact, "stage the data again")) from error
        if fact != digest:
            raise DataError("a token shard is damaged", f"{name}: {fact}, wanted {digest}", "stage the data again")
