"""The held-out split, without the training shards, for an evaluation."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from trainer.builtin.data.reader import load_manifest
from trainer.client.bivouac_data.reader import Refused, spacing
from trainer.contract import DataManifest
from trainer.errors import ConfigError, DataError, unread


class HeldOut:
    """Held-out sequences of `context + 1` tokens, equal to those of `Reader.held_out`."""

    def __init__(self, manifest: DataManifest, tokens: np.ndarray, context: int) -> None:
        self.manifest, self.context, self._tokens = manifest, context, tokens
        try:
            self._stride, shared = spacing(manifest, context)
        except Refused as refused:
            raise DataError(refused.what, refused.seen, refused.cure) from refused
        self.held_out_samples = max(0, (len(tokens) - shared) // self._stride)
        if not self.held_out_samples:
            detail = f"{len(tokens)} held-out tokens, context {context}"
            raise DataError("the data holds less than one held-out sequence", detail, "give more text")

    def held_out(self, sequences: int) -> np.ndarray:
        count = min(sequences, self.held_out_samples)
        starts = [index * self.held_out_samples // count * self._stride for index in range(count)]
        return np.stack([self._tokens[start : start + self.context + 1] for start in starts]).astype(np.int64)


def open_held_out(root: Path, digest: str, vocabulary: int, context: int, or_fewer: bool = False) -> HeldOut:
    """Open and verify the held-out split at `root`; the training shards may be elsewhere. `or_fewer`: the data may have
    fewer tokens than the model's `vocabulary`.

    Raises `DataError` when it is damaged or of another manifest digest, `StorageError` for errors of the mount.
    """
    manifest = load_manifest(root, digest)
    if manifest.vocabulary != vocabulary and not (or_fewer and manifest.vocabulary < vocabulary):
        fact = f"model.vocabulary {vocabulary}, tokenizer {manifest.vocabulary}"
        raise DataError("model and tokenizer differ in size", fact, "pass the checkpoint's train.json")
    parts = []
    for shard in manifest.validation:
        try:
            content = (root / shard.file).read_bytes()
        except OSError as error:
            fact = f"{shard.file}: {error.strerror}"
            raise unread(error, DataError("a held-out shard is missing", fact, "fetch it from the archive")) from error
        if (digest_seen := hashlib.sha256(content).hexdigest()) != shard.sha256:
            fact = f"{shard.file}: {digest_seen}, wanted {shard.sha256}"
            raise DataError("a held-out shard is damaged", fact, "fetch it again from the archive")
        parts.append(np.frombuffer(content, dtype=np.dtype(manifest.dtype).newbyteorder("<")))
    return HeldOut(manifest, np.concatenate(parts), context)


def end_of_document(manifest: DataManifest, tokenizer: bytes) -> tuple[int, str]:
    """Return (id, text) of the token that ends every document. Raises `ConfigError` when the tokenizer has none."""
    settings: dict[str, Any] = json.loads(tokenizer)
    special = {token["id"]: token["content"] for token in settings.get("added_tokens", ()) if token.get("special")}
    end = manifest.end_of_document
    vocabulary = {number: text for text, number in settings["model"]["vocab"].items()}
    if (text := special.get(end) or vocabulary.get(end)) is None:
        raise ConfigError("the tokenizer has no token that ends a document", f"{end}, special ones {sorted(special)}")
    return end, text
