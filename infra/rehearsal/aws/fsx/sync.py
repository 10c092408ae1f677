"""Move objects of moto's S3 into a file system's folder, in process, whole objects at a time."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.rehearsal.aws.world import World


@dataclass
class Link:
    """A folder and the prefix it mirrors; `etags` has the last common state by relative path."""

    world: World
    folder: Path
    bucket: str
    prefix: str
    etags: dict[str, str] = field(default_factory=dict)
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

    def pull(self, events: frozenset[str]) -> None:
        """Import NEW and CHANGED objects and remove DELETED ones, as `events` lists."""
        objects = self.objects()
        for relative, key in sorted(objects.items()):
            previous_etag = self.etags.get(relative)
            if previous_etag == key.etag or ("NEW" if previous_etag is None else "CHANGED") not in events:
                continue
            self._write(relative, key)
        if "DELETED" in events:
            for relative in sorted(set(self.etags) - set(objects)):
                del self.etags[relative]
                (self.folder / relative).unlink(missing_ok=True)

    def _write(self, relative: str, key: Any) -> None:
        target = self.folder / relative
        if not target.resolve().is_relative_to(self.folder.resolve()):
            return  # a key like ../x is no path in the file system
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.importing")
        partial.write_bytes(key.value)
        os.replace(partial, target)
        self.etags[relative] = key.etag
