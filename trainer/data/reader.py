"""Reading a prepared data set: digests are verified on open, a sample is a pure function of seed and position."""

from __future__ import annotations

import bisect
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from trainer.contract import DATA_MANIFEST_NAME, DataManifest, TokenShard
from trainer.data.order import sample_at
from trainer.errors import DataError


@dataclass(frozen=True)
class TokenPart:
    """The shards of one part as one long row of tokens, mapped into memory."""

    shards: tuple[np.ndarray, ...]
    starts: tuple[int, ...]
    tokens: int

    def window(self, start: int, length: int) -> np.ndarray:
        """`length` tokens from `start` as int64, across shard boundaries."""
        pieces = []
        index = bisect.bisect_right(self.starts, start) - 1
        while length > 0:
            offset = start - self.starts[index]
            piece = self.shards[index][offset : offset + length]
            pieces.append(piece)
            start, length, index = start + len(piece), length - len(piece), index + 1
        return np.concatenate(pieces).astype(np.int64)


class Reader:
    """Sequences of `context + 1` tokens: inputs and, shifted by one, targets."""

    def __init__(self, root: Path, manifest: DataManifest, context: int, seed: int) -> None:
        self.manifest, self.context, self.seed = manifest, context, seed
        self._train = _map(root, manifest.train)
        self._validation = _map(root, manifest.validation)
        self.samples = max(0, (self._train.tokens - 1) // context)
        self.held_out_samples = max(0, (self._validation.tokens - 1) // context)
        if not self.samples or not self.held_out_samples:
            raise DataError(
                "the data holds less than one sequence of each part",
                f"{self._train.tokens} training and {self._validation.tokens} held-out tokens, context {context}",
                "give more text or a shorter model.context",
            )

    def batch(self, positions: range) -> np.ndarray:
        """Sequences at these positions, shape (len(positions), context + 1)."""
        return np.stack([self._sequence(self._train, sample_at(p, self.samples, self.seed)) for p in positions])

    def held_out(self, sequences: int) -> np.ndarray:
        """Sequences spread evenly over the held-out part (its first documents alone differ by a nat); always the same.

        All of them when there are fewer than asked for.
        """
        count = min(sequences, self.held_out_samples)
        chosen = [index * self.held_out_samples // count for index in range(count)]
        return np.stack([self._sequence(self._validation, index) for index in chosen])

    def _sequence(self, part: TokenPart, index: int) -> np.ndarray:
        return part.window(index * self.context, self.context + 1)


def open_data(root: Path, digest: str, vocabulary: int, context: int, seed: int, verify: bool = True) -> Reader:
    """Open the data set at `root`; raises `DataError` when it is not the one with this manifest digest, or damaged.

    `verify` reads every shard once: one rank per node is enough.
    """
    manifest = load_manifest(root, digest)
    if manifest.vocabulary != vocabulary:
        raise DataError(
            "model and tokenizer differ in size",
            f"model.vocabulary {vocabulary}, tokenizer {manifest.vocabulary}",
            "set model.vocabulary to the tokenizer's size or prepare the data again",
        )
    if verify:
        for shard in (*manifest.train, *manifest.validation):
            _verify(root, shard)
    return Reader(root, manifest, context, seed)


def load_manifest(root: Path, digest: str) -> DataManifest:
    """The manifest at `root`; an empty digest accepts any."""
    path = root / DATA_MANIFEST_NAME
    try:
        content = path.read_bytes()
        manifest = DataManifest.model_validate_json(content)
    except OSError as error:
        raise DataError("there is no prepared data", f"{path}: {error.strerror}", "stage the prepared data") from error
    except ValidationError as error:
        raise DataError("the data manifest is damaged", f"{path}: {error}", "stage the prepared data again") from error
    seen = hashlib.sha256(content).hexdigest()
    if digest and seen != digest:
        raise DataError(
            "this is not the data that the configuration names", f"manifest {seen}, wanted {digest}", "stage that data"
        )
    return manifest


def _verify(root: Path, shard: TokenShard) -> None:
    try:
        with (root / shard.file).open("rb") as file:
            seen = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            "a token shard is missing", f"{shard.file}: {error.strerror}", "stage the data again"
        ) from error
    if seen != shard.sha256:
        raise DataError(
            "a token shard is damaged", f"{shard.file}: {seen}, wanted {shard.sha256}", "stage the data again"
        )


def _map(root: Path, shards: tuple[TokenShard, ...]) -> TokenPart:
    arrays, starts, total = [], [], 0
    for shard in shards:
        try:
            arrays.append(np.memmap(root / shard.file, dtype="<u2", mode="r"))
        except (OSError, ValueError) as error:
            raise DataError("a token shard cannot be read", f"{shard.file}: {error}", "stage the data again") from error
        starts.append(total)
        total += len(arrays[-1])
    return TokenPart(tuple(arrays), tuple(starts), total)
