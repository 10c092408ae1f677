"""Small texts, and data sets made of them."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.builtin.data.cache import Cache
from trainer.builtin.data.prepare.prepare import make
from trainer.builtin.data.prepare.workers import Progress
from trainer.builtin.data.reader import Reader, check_vocabulary, load_manifest, verify_shards
from trainer.client.bivouac_data.reader import folder_opener
from trainer.contract import DataManifest, Parameters
from trainer.contract.recipe import Recipe, Source

_INDEX = struct.Struct("<9sQBQQ")
"""Head of Megatron's `.idx`: magic, version, type, sequences, document marks."""


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
    """One folder of text with defaults for everything else, in this process."""
    parameters = Parameters(held_out=held_out, seed=seed, max_files=max_files)
    sources = (Source(location=str(source), pattern=pattern),)
    return make(Recipe(sources=sources, parameters=parameters, vocabulary=vocabulary), out, progress, cores=1)


def open_data(root: Path, digest: str, vocabulary: int, context: int, seed: int, verify: bool = True) -> Reader:
    """Open the data set at `root`; raises `DataError` when it is not the one with this manifest digest, or damaged.

    `verify` reads every shard once: one rank per node is enough.
    """
    manifest = load_manifest(root, digest)
    check_vocabulary(manifest, vocabulary)
    if verify:
        verify_shards(root, manifest)
    return Reader(manifest, folder_opener(root), context, seed)


def read_lengths(path: Path) -> NDArray[np.int32]:
    """Lengths of the sequences of an `.idx`, in tokens."""
    content = path.read_bytes()
    magic, version, _, count, _ = _INDEX.unpack_from(content)
    assert (magic, version) == (b"MMIDIDX\x00\x00", 1), path
    return np.frombuffer(content, dtype="<i4", count=count, offset=_INDEX.size)


def used_bytes(cache: Cache) -> int:
    """What lies in a cache, copies on their way included."""
    return sum(size for _, size, _ in cache._copies())


def write_text(root: Path, documents: int = 12) -> Path:
    root.mkdir()
    for index in range(documents):
        words = (f"word{number % (index + 3)} of document {index}\n" for number in range(300))
        (root / f"{index}.txt").write_text("".join(words))
    return root


def quiet(stage: str, part: float) -> None:
    """Nobody listens."""


def simple(source: Path, out: Path, pattern: str = "*.txt", vocabulary: int = 270) -> DataManifest:
    return prepare(source, pattern, None, 0.2, 5, vocabulary, out, quiet)


def recipe(*sources: Path | Source, vocabulary: int = 300, **parameters: Any) -> Recipe:
    made = [
        each if isinstance(each, Source) else Source(name=f"s{number}", location=str(each))
        for number, each in enumerate(sources)
    ]
    rules = Parameters(**{"held_out": 0.2, "seed": 5, "shard_tokens": 2000, **parameters})
    return Recipe(sources=tuple(made), parameters=rules, vocabulary=vocabulary)


def content(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir()) if not path.name.startswith(".")}


def texts(count: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    words = ["camp", "node", "lease", "rank", "ümlaut", "shard", "step", "日本"]
    return [" ".join(chance.choices(words, k=chance.randint(5, 200))) + f" {index}\n" for index in range(count)]


def decoded(out: Path, manifest: DataManifest, part: str = "train") -> list[str]:
    """Every document of a part, through the index, as text."""
    tokenizer, found = Tokenizer.from_file(str(out / "tokenizer.json")), []
    for shard in getattr(manifest, part):
        ids = np.fromfile(out / shard.file, dtype=manifest.dtype)
        for document in np.split(ids, np.cumsum(read_lengths(out / shard.index))[:-1]):
            assert document[-1] == manifest.end_of_document
            found.append(tokenizer.decode(document[:-1].tolist(), skip_special_tokens=False))
    return found


def prepared_words(root: Path) -> Path:
    """Prepare texts of random words, always the same ones; return the folder of the data."""
    source, data = root / "text", root / "data"
    source.mkdir()
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 7))) for _ in range(600)]
    for index in range(80):
        lines = (" ".join(chance.choices(words[index : index + 60], k=12)) for _ in range(20))
        (source / f"{index}.txt").write_text("\n".join(lines))
    prepare(source, "*.txt", None, 0.1, 7, 512, data, lambda stage, part: None)
    return data
