"""Move files between a file system's folder and a bucket of moto's S3, in process, whole objects at a time."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.rehearsal.aws.world import World

SETTLED_S = 2.0
"""A file younger than this may still be written, so automatic export waits."""
STAMP = tuple[int, int]
"""(size, mtime in ns) of a file when it last equalled its object."""


@dataclass
class Link:
    """A folder and the prefix it mirrors; `etags` and `stamps` have the last common state by relative path."""

    world: World
    folder: Path
    bucket: str
    prefix: str
    etags: dict[str, str] = field(default_factory=dict)
    stamps: dict[str, STAMP] = field(default_factory=dict)
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held while files are moved; never acquired under the world's lock."""

    def objects(self) -> dict[str, Any]:
        """Return the newest moto keys by path relative to the prefix. Raises KeyError without the bucket."""
        from moto.s3.models import FakeKey

        listing: dict[str, Any] = {}
        for name, versions in dict(self.world.backend("s3").buckets[self.bucket].keys).items():
            key = versions[-1] if versions else None
            relative = name[len(self.prefix) :]
            if isinstance(key, FakeKey) and name.startswith(self.prefix) and relative and not name.endswith("/"):
                listing[relative] = key
        return listing

    def files(self) -> dict[str, Path]:
        paths = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self.folder)): path for path in paths}

    def pull(self, events: frozenset[str]) -> int:
        """Import NEW and CHANGED objects and remove DELETED ones, as `events` lists. Return how many."""
        count = 0
        objects = self.objects()
        for relative, key in sorted(objects.items()):
            previous_etag = self.etags.get(relative)
            if previous_etag == key.etag or ("NEW" if previous_etag is None else "CHANGED") not in events:
                continue
            self._write(relative, key)
            count += 1
        if "DELETED" in events:
            for relative in sorted(set(self.etags) - set(objects)):
                self._forget(relative)
                (self.folder / relative).unlink(missing_ok=True)
                count += 1
        return count

    def _write(self, relative: str, key: Any) -> None:
        target = self.folder / relative
        if not target.resolve().is_relative_to(self.folder.resolve()):
            return  # a key like ../x is no path in the file system
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.importing")
        partial.write_bytes(key.value)
        os.replace(partial, target)
        self.etags[relative], self.stamps[relative] = key.etag, _stamp(target)

    def changes_of(self, events: frozenset[str], settled_s: float = 0.0) -> list[str]:
        """Return the files that differ from the last common state and are at least `settled_s` old."""
        limit = time.time() - settled_s
        changes = []
        for relative, path in sorted(self.files().items()):
            try:
                kind = "CHANGED" if relative in self.stamps else "NEW"
                if kind in events and self.stamps.get(relative) != _stamp(path) and path.stat().st_mtime <= limit:
                    changes.append(relative)
            except FileNotFoundError:
                continue
        return changes

    def push(self, relative: str) -> None:
        """Write one file to its object. Raises OSError, or moto's error for a deleted bucket."""
        path = self.folder / relative
        stamp = _stamp(path)
        key = self.world.backend("s3").put_object(self.bucket, self.prefix + relative, path.read_bytes())
        self.etags[relative], self.stamps[relative] = key.etag, stamp

    def push_deletions(self) -> None:
        for relative in sorted(set(self.stamps) - set(self.files())):
            self._forget(relative)
            self.world.backend("s3").delete_object(self.bucket, self.prefix + relative)

    def _forget(self, relative: str) -> None:
        self.etags.pop(relative, None)
        self.stamps.pop(relative, None)


def _stamp(path: Path) -> STAMP:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
