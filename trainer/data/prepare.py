"""From a folder of text to token shards: deterministic, and complete or absent (the manifest is written last)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.contract import DATA_MANIFEST_NAME, DataManifest, TokenShard
from trainer.errors import DataError

END_OF_DOCUMENT = "<|end|>"
TOKENIZER_NAME = "tokenizer.json"
SHARD_TOKENS = 32 * 2**20
SAMPLE_BYTES = 4 * 2**20
"""Text that the tokenizer is trained on, at most."""
FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__", ".git"})
"""Folders below a source that are never part of it: installed packages below a standard library, for one."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class _Document:
    name: str
    text: str
    held_out: bool


def prepare(
    source: Path,
    pattern: str,
    max_files: int | None,
    held_out: float,
    seed: int,
    vocabulary: int,
    out: Path,
    progress: Progress,
) -> DataManifest:
    """Tokenize every file of `source` that matches into `out`; `progress` gets a stage's name and a part of one.

    Raises `DataError` for a source that is missing, empty, unreadable, or too small for the vocabulary.
    """
    progress("read", 0.0)
    files = _choose(source, pattern, max_files, seed)
    documents, skipped = _read(source, files, held_out, seed)
    progress("tokenizer", 0.2)
    tokenizer = _train_tokenizer([d.text for d in documents if not d.held_out], vocabulary)
    progress("encode", 0.5)
    parts = {
        "train": _encode(tokenizer, [d.text for d in documents if not d.held_out]),
        "validation": _encode(tokenizer, [d.text for d in documents if d.held_out]),
    }
    progress("write", 0.9)
    out.mkdir(parents=True, exist_ok=True)
    (out / DATA_MANIFEST_NAME).unlink(missing_ok=True)
    serialized = tokenizer.to_str().encode()
    _write(out / TOKENIZER_NAME, serialized)
    manifest = DataManifest(
        source=source.name,
        pattern=pattern,
        max_files=max_files,
        held_out=held_out,
        seed=seed,
        documents=len(documents),
        held_out_documents=sum(d.held_out for d in documents),
        skipped_documents=skipped,
        source_bytes=sum(len(d.text.encode()) for d in documents),
        vocabulary=vocabulary,
        tokenizer_sha256=hashlib.sha256(serialized).hexdigest(),
        train=tuple(_write_shards(out, "train", parts["train"])),
        validation=tuple(_write_shards(out, "validation", parts["validation"])),
        train_tokens=len(parts["train"]),
        validation_tokens=len(parts["validation"]),
        unigram_loss=unigram_loss(parts["train"], parts["validation"], vocabulary),
    )
    _write(out / DATA_MANIFEST_NAME, json.dumps(manifest.model_dump(mode="json"), indent=1).encode())
    progress("done", 1.0)
    return manifest


def unigram_loss(train: np.ndarray, validation: np.ndarray, vocabulary: int) -> float:
    """Cross entropy in nats per token of `validation` under the add-one smoothed unigram distribution of `train`."""
    counts = np.bincount(train, minlength=vocabulary).astype(np.float64) + 1.0
    log_probability = np.log(counts / counts.sum())
    return round(float(-log_probability[validation].mean()), 6)


def _choose(source: Path, pattern: str, max_files: int | None, seed: int) -> list[Path]:
    if not source.is_dir():
        raise DataError("there is no such data folder", source, "set data.source to an existing folder of text files")
    files = sorted(
        path for path in source.glob(pattern) if path.is_file() and FOREIGN.isdisjoint(path.relative_to(source).parts)
    )
    if not files:
        raise DataError("no file matches", f"{pattern} in {source}", "correct data.pattern or data.source")
    if max_files is None or len(files) <= max_files:
        return files
    return sorted(sorted(files, key=lambda path: _hash(seed, path.relative_to(source).as_posix().encode()))[:max_files])


def _read(source: Path, files: list[Path], held_out: float, seed: int) -> tuple[list[_Document], int]:
    documents, hashes, skipped = [], [], 0
    for path in files:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(
                "a data file cannot be read", f"{path}: {error.strerror}", "mend its permissions"
            ) from error
        text = _text(content)
        if text is None:
            skipped += 1
            continue
        digest = _hash(seed, content)
        hashes.append(digest)
        documents.append(_Document(path.relative_to(source).as_posix(), text, _fraction(digest) < held_out))
    if len(documents) < 2:
        raise DataError(
            "too few documents with text to train on",
            f"{len(documents)} of {len(files)} files under {source} hold UTF-8 text",
            "give at least two UTF-8 text files",
        )
    if len({d.held_out for d in documents}) == 1:
        # With few documents chance may leave one part empty: the smallest hash is then the held-out part.
        first = hashes.index(min(hashes))
        documents = [_Document(d.name, d.text, index == first) for index, d in enumerate(documents)]
    return documents, skipped


def _text(content: bytes) -> str | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.strip() else None


def _train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    if vocabulary > 2**16:
        raise DataError("token ids must fit into 16 bits", vocabulary, "set model.vocabulary to 65536 or less")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(texts), trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise DataError(
            "the text is too small for the vocabulary",
            f"{tokenizer.get_vocab_size()} tokens where {vocabulary} were asked for",
            f"set model.vocabulary to {tokenizer.get_vocab_size()} or give more text",
        )
    return tokenizer


def _sample(texts: list[str]) -> Iterator[str]:
    """An even share of every document, so that the sample does not follow the alphabet of file names."""
    total = sum(len(text) for text in texts)
    share = min(1.0, SAMPLE_BYTES / max(total, 1))
    for text in texts:
        yield text[: max(1, int(len(text) * share))]


def _encode(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    end = tokenizer.token_to_id(END_OF_DOCUMENT)
    tokens: list[np.ndarray] = []
    for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
        tokens.append(np.asarray([*encoding.ids, end], dtype="<u2"))
    return np.concatenate(tokens)


def _write_shards(out: Path, part: str, tokens: np.ndarray) -> Iterator[TokenShard]:
    for index, start in enumerate(range(0, len(tokens), SHARD_TOKENS)):
        content = tokens[start : start + SHARD_TOKENS].tobytes()
        name = f"{part}-{index:05d}.bin"
        _write(out / name, content)
        yield TokenShard(file=name, tokens=len(content) // 2, sha256=hashlib.sha256(content).hexdigest())


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def _hash(seed: int, content: bytes) -> bytes:
    return hashlib.sha256(f"{seed}:".encode() + content).digest()


def _fraction(digest: bytes) -> float:
    return int.from_bytes(digest[:8], "big") / 2**64
