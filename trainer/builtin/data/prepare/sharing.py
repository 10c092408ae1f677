"""The work of one of several workers, on machines of their own. Each runs the whole preparation, but of each stage it
makes only the parts that nobody has made yet, its own share first, and takes the others from S3.

So a lost worker costs the part that it worked on: the others make its share when they are through with theirs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.builtin.data.prepare.parts import Parts
from trainer.builtin.data.prepare.workers import Progress, Stage, Workers

MOST_ITEMS = 64
"""Of a part: half a gigabyte of text, which a large machine encodes in less than a minute."""
LEAST_PARTS = 64
"""Of a stage with enough items, so that many workers have something to do."""


@dataclass(frozen=True)
class Part:
    name: str
    stage: Stage
    """With the items of this part only."""

    @property
    def files(self) -> list[Path]:
        return [path for item in self.stage.items for path in self.stage.files(item)]

    @property
    def documents(self) -> int:
        return sum(self.stage.documents(item) for item in self.stage.items)


@dataclass
class Tally:
    """How far a stage is, over all workers."""

    parts: int = 0
    of: int = 0
    documents: int = 0
    documents_per_s: float | None = None
    """At the rate of all workers since this one began the stage; None before the second look."""


class Sharing(Workers):
    """Worker `index` of `count`."""

    def __init__(self, cores: int | None, progress: Progress, store: Parts, index: int, count: int) -> None:
        super().__init__(cores, progress)
        self._store, self._index, self._count_of_workers = store, index, count
        self.tally = Tally()

    def agree(self, path: Path) -> None:
        self._store.agree(path)

    def run_stage(self, stage: Stage) -> None:
        parts = parts_of(stage)
        watch = _Watch(self, stage, parts)
        watch.look()
        for part in self._in_turn(parts):
            if part.name in watch.look():
                continue
            self._make(part)
        watch.look()

    def _in_turn(self, parts: list[Part]) -> list[Part]:
        """Return this worker's share, then the others' parts, the last ones first: their workers begin at the first."""
        own_parts = parts[self._index :: self._count_of_workers]
        return [*own_parts, *(part for part in reversed(parts) if part not in own_parts)]

    def _make(self, part: Part) -> None:
        stage = part.stage
        needs = {path for item in stage.items for path in stage.needs(item)}
        large = [path for item in stage.items for path in stage.large(item)]
        self._store.fetch(needs)
        rows = zip(stage.items, stage.sizes, strict=True)
        self.run(stage, [(item, size) for item, size in rows if not stage.is_done(item)], lambda size: None)
        self._store.keep(part.name, part.files, large, part.documents)
        for path in {*needs, *large}:
            path.unlink(missing_ok=True)

    def fetch_part(self, part: Part) -> int:
        """Write a finished part's small files here; return the number of its documents."""
        return self._store.fetch_part(part.name, {path.name: path for path in part.files})

    def finished_parts(self, stage: Stage) -> set[str]:
        return self._store.names(f"{stage.name}-")


class _Watch:
    """Brings what other workers have finished, and reports progress."""

    def __init__(self, workers: Sharing, stage: Stage, parts: Sequence[Part]) -> None:
        self._workers, self._stage, self._parts = workers, stage, {part.name: part for part in parts}
        self._brought: set[str] = set()
        self._done, self._documents = 0, 0
        self._first: tuple[float, int] | None = None

    def look(self) -> set[str]:
        """Return the names of the finished parts, whose small files are here then."""
        finished_names = self._workers.finished_parts(self._stage) & set(self._parts)
        for name in sorted(finished_names - self._brought):
            part = self._parts[name]
            self._documents += self._workers.fetch_part(part)
            self._done += sum(part.stage.sizes)
            self._brought.add(name)
        self._tell()
        return finished_names

    def _tell(self) -> None:
        now = time.monotonic()
        self._first = self._first or (now, self._documents)
        start_s, base = self._first
        rate = round((self._documents - base) / (now - start_s), 1) if self._documents > base else None
        self._workers.tally = Tally(len(self._brought), len(self._parts), self._documents, rate)
        span_start, span_end = self._stage.span
        share = self._done / max(1, sum(self._stage.sizes))
        self._workers.progress(self._stage.name, span_start + (span_end - span_start) * share)


def parts_of(stage: Stage) -> list[Part]:
    """Cut a stage into parts of consecutive items, which depend on the number of items alone."""
    step = max(1, min(MOST_ITEMS, len(stage.items) // LEAST_PARTS))
    parts = []
    for start in range(0, len(stage.items), step):
        items: Sequence[Any] = stage.items[start : start + step]
        part_stage = replace(stage, items=items, sizes=stage.sizes[start : start + step])
        parts.append(Part(f"{stage.name}-{start // step:06d}", part_stage))
    return parts
