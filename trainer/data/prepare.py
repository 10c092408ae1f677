"""From a folder of text to token shards: deterministic, and complete or absent (the manifest is written last)."""

from __future__ import annotations

import hashlib
import json
import os
import re
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

BATCH_CHARACTERS = 4 * 2**20
HELD_BYTES, ENCODED_BYTES = 8, 132
"""Memory that a byte of text takes: as text and tokens, and while it is encoded (measured on Python sources)."""
_OURS = re.compile(r"^(?:manifest\.json|tokenizer\.json|(?:train|validation)-\d{5}\.bin|\..*\.partial)$")

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
    _refuse_foreign(out)
    documents, states, skipped = _read(source, files, held_out, seed, progress)
    progress("tokenizer", 0.2)
    tokenizer = _train_tokenizer([d.text for d in documents if not d.held_out], vocabulary)
    progress("encode", 0.5)
    parts = {
        "train": _encode(tokenizer, [d.text for d in documents if not d.held_out]),
        "validation": _encode(tokenizer, [d.text for d in documents if d.held_out]),
    }
    progress("write", 0.9)
    _refuse_changes(states)
    out.mkdir(parents=True, exist_ok=True)
    (out / DATA_MANIFEST_NAME).unlink(missing_ok=True)
    for left in [*out.glob("*.bin"), *out.glob(".*.partial")]:
        left.unlink()  # of an earlier preparation, or of one that was killed
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


def _refuse_foreign(out: Path) -> None:
    """Nothing that is not ours is overwritten, and no set is mixed with other files."""
    try:
        names = sorted(path.name for path in out.iterdir()) if out.exists() else []
    except OSError as error:
        raise DataError("the output cannot be used", f"{out}: {error.strerror}", "name another folder") from error
    foreign = [name for name in names if not _OURS.match(name)]
    if foreign:
        seen = f"{', '.join(foreign[:3])} in {out}"
        raise DataError("the output folder holds other files", seen, "name an empty or a new folder")


def _choose(source: Path, pattern: str, max_files: int | None, seed: int) -> list[Path]:
    if not source.is_dir():
        raise DataError("there is no such data folder", source, "set data.source to an existing folder of text files")
    try:
        found = [path for path in source.glob(pattern) if FOREIGN.isdisjoint(path.relative_to(source).parts)]
        files = sorted(path for path in found if path.is_file())
    except (NotImplementedError, OSError, RuntimeError, ValueError) as error:
        seen = f"{pattern!r} in {source}: {error}"
        raise DataError(
            "the pattern cannot be used", seen, "give one relative to the source, such as **/*.txt"
        ) from error
    if not files:
        raise DataError("no file matches", f"{pattern} in {source}", "correct data.pattern or data.source")
    if max_files is None or len(files) <= max_files:
        return files
    return sorted(sorted(files, key=lambda path: _hash(seed, path.relative_to(source).as_posix().encode()))[:max_files])


def _read(
    source: Path, files: list[Path], held_out: float, seed: int, progress: Progress
) -> tuple[list[_Document], dict[Path, tuple[int, ...]], int]:
    """Documents, what each file was when it was read, and how many held no text."""
    documents, hashes, states, skipped, room = [], [], dict[Path, tuple[int, ...]](), 0, _memory_bytes()
    for number, path in enumerate(files):
        if number % 100 == 0:
            progress("read", 0.2 * number / len(files))
        content, states[path] = _content(path, room)
        room -= HELD_BYTES * len(content)
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
    return documents, states, skipped


def _content(path: Path, room: int) -> tuple[bytes, tuple[int, ...]]:
    """A file's bytes and what it was before and after; refused where it would not fit or changes under our hands."""
    try:
        with path.open("rb") as file:
            before = _state(os.fstat(file.fileno()))
            size = before[0]
            if size * (HELD_BYTES + ENCODED_BYTES) > room:
                more = max(0, room) / (HELD_BYTES + ENCODED_BYTES) / 1e6
                raise DataError(
                    "the text does not fit into memory",
                    f"{path} with {size / 1e6:,.0f} MB, room for {more:,.0f} MB more",
                    "set data.max_files, leave the large files out by data.pattern, or split them",
                )
            content = file.read(size + 1)  # one more shows growth, and no more than that is ever held
    except OSError as error:
        raise DataError("a data file cannot be read", f"{path}: {error.strerror}", "mend its permissions") from error
    if len(content) != size or _state_at(path) != before:
        raise _changed(path)
    return content, before


def _refuse_changes(states: dict[Path, tuple[int, ...]]) -> None:
    """What was prepared is what lies there now: a set of files that were being written is no set."""
    for path, before in states.items():
        if _state_at(path) != before:
            raise _changed(path)


def _changed(path: Path) -> DataError:
    return DataError("a data file changed while it was prepared", path, "end what writes there, then prepare again")


def _state_at(path: Path) -> tuple[int, ...] | None:
    try:
        return _state(path.stat())
    except OSError:
        return None


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


def _memory_bytes() -> int:
    """Available now, within the limit of an enclosing control group."""
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(rows["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, int(text) - int(used.read_text()))
    return available


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
    for batch in _batches(texts):
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            tokens.append(np.asarray([*encoding.ids, end], dtype="<u2"))
    return np.concatenate(tokens)


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Documents in order, so many at once that their encodings fit; a larger one goes alone."""
    batch, held = list[str](), 0
    for text in texts:
        if batch and held + len(text) > BATCH_CHARACTERS:
            yield batch
            batch, held = [], 0
        batch.append(text)
        held += len(text)
    if batch:
        yield batch


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
