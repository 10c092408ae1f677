"""Shards of a few bytes, a source that answers as it is told, and a cache of a node between them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainer.builtin.data import cache as caching
from trainer.builtin.data.cache import Cache
from trainer.contract import TokenShard

SIZE = 100


def shard(name: str, size: int = SIZE) -> TokenShard:
    return shard_of(name, content(name, size))


def shard_of(name: str, whole: bytes) -> TokenShard:
    digest = hashlib.sha256(whole).hexdigest()
    tokens = (len(whole) + 1) // 2
    return TokenShard(file=f"{name}.bin", tokens=tokens, documents=1, sha256=digest, index_sha256="")


def content(name: str, size: int = SIZE) -> bytes:
    return name.encode() * size


@dataclass
class Shelves:
    """A source whose answers come one after the other: bytes, an error, or what makes the pieces; else the shard."""

    answers: list[Any] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def read(self, name: str) -> Iterator[bytes]:
        self.asked.append(name)
        answer = self.answers.pop(0) if self.answers else content(name.removesuffix(".bin"))
        if isinstance(answer, Exception):
            raise answer
        yield from answer() if callable(answer) else [answer[:30], answer[30:]]

    def __str__(self) -> str:
        return "the shelves"


@dataclass
class World:
    cache: Cache
    source: Shelves
    pauses: list[float]
    told: list[dict[str, Any]]

    @property
    def names(self) -> list[str]:
        return sorted(path.stem for path in self.cache.folder.glob("*.bin"))

    def used_at(self, each: TokenShard, when: int) -> None:
        os.utime(self.cache.locate(each), ns=(when, when))

    def holds(self, names: str) -> str:
        return "".join(name for name in names if self.cache.holds(shard(name)))

    def said(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.told if each["event"] == event]


def caches_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Return what makes caches of one folder; each has a source of its own."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(caching, "emit", lambda event, **fields: told.append({"event": event, **fields}))

    def make(*answers: Any, limit: int = 2**30, session: str = "one") -> World:
        source, pauses = Shelves(list(answers)), list[float]()
        cache = Cache(tmp_path / "of a node" / "cache", limit, source, 2, session, pauses.append)  # type: ignore[arg-type]
        return World(cache, source, pauses, told)

    return make
