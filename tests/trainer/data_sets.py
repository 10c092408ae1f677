"""Small texts, and data sets made of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from trainer.contract import DataManifest, Parameters
from trainer.contract.recipe import Recipe, Source
from trainer.data.indexed import read_lengths
from trainer.data.prepare import prepare

ROOT = Path(__file__).parents[2]


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
