"""Power loss: a rank's operations are recorded with what each fsync made durable, and cut off anywhere.

The disk after the cut is any that POSIX allows: a file holds what was last fsynced (or a part of what was not), and a
folder shows its last fsynced entries plus any beginning of what was changed since.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Recorder:
    """Operations below a folder, one pickle after the other; an announcement of the log counts as one."""

    def __init__(self, root: Path, said: Path) -> None:
        self._root, self._file = str(root), said.open("ab")
        self._lock = threading.Lock()

    def __call__(self, kind: str, path: str, other: str) -> None:
        if path.startswith(self._root) and not os.path.basename(path).startswith("rank-"):
            content = b""
            if kind == "fsync":
                if os.path.isdir(path):
                    kind = "fsync-folder"
                else:
                    content = Path(path).read_bytes()
            self.note(kind, path, other, content)

    def note(self, kind: str, path: str, other: str, content: bytes) -> None:
        with self._lock:
            pickle.dump((kind, path, other, content), self._file)
            self._file.flush()


class Announcing:
    """A stdout that tells the recorder what the log announced, at the very moment."""

    def __init__(self, stdout: Any, recorder: Recorder) -> None:
        self._stdout, self._recorder = stdout, recorder

    def write(self, text: str) -> int:
        if text.startswith('{"event": "committed"'):
            event = json.loads(text)
            self._recorder.note("committed", event["tier"], str(event["step"]), b"")
        return int(self._stdout.write(text))

    def flush(self) -> None:
        self._stdout.flush()


def read_record(said: Path) -> list[tuple[str, str, str, bytes]]:
    found = []
    with said.open("rb") as file:
        while file.peek(1):
            found.append(pickle.load(file))  # written by this very drill a moment ago
    return found


@dataclass
class Inode:
    folder: bool
    durable: bytes = b""
    shown: dict[str, Inode] = field(default_factory=dict)
    """Entries of a folder that are durable."""
    live: dict[str, Inode] = field(default_factory=dict)
    pending: list[tuple[str, Inode | None]] = field(default_factory=list)
    """Changes since the last fsync, in order: a name, and what it names from then on."""

    def change(self, name: str, inode: Inode | None) -> None:
        self.pending.append((name, inode))
        _apply(self.live, [(name, inode)])

    def sync(self) -> None:
        self.shown, self.pending = dict(self.live), []


class Disk:
    """A file system at `root` that begins durable as the folder `like` stands."""

    def __init__(self, root: Path, like: Path) -> None:
        self.root, self.top = root, _read(like)

    def play(self, kind: str, path: str, other: str, content: bytes) -> None:
        if kind == "fsync-folder":
            if (inode := self._find(path)) is not None:
                inode.sync()
        elif kind == "fsync":
            if (inode := self._find(path)) is not None:
                inode.durable = content
        elif kind in ("create", "mkdir"):
            folder, name = self._parent(path)
            if name not in folder.live:
                folder.change(name, Inode(kind == "mkdir"))
        elif kind in ("unlink", "rmdir"):
            folder, name = self._parent(path)
            if name in folder.live:
                folder.change(name, None)
        elif kind in ("rename", "link"):
            source, old = self._parent(path)
            target, new = self._parent(other)
            inode = source.live.get(old)
            if inode is None or (kind == "link" and new in target.live):
                return
            target.change(new, inode)
            if kind == "rename":
                source.change(old, None)

    def after_the_cut(self, chance: random.Random, target: Path) -> None:
        """Write one of the disks that may be found, into a new folder."""
        _write(self.top, target, chance)

    def _find(self, path: str) -> Inode | None:
        inode: Inode | None = self.top
        for part in Path(path).relative_to(self.root).parts:
            inode = inode.live.get(part) if inode is not None else None
        return inode

    def _parent(self, path: str) -> tuple[Inode, str]:
        inode = self._find(os.path.dirname(path))
        # A wrapper tells of an operation before it happens; one in a folder that is gone fails.
        return inode or Inode(True), os.path.basename(path)


def _apply(entries: dict[str, Inode], changes: list[tuple[str, Inode | None]]) -> None:
    for name, inode in changes:
        if inode is None:
            entries.pop(name, None)
        else:
            entries[name] = inode


def _read(path: Path) -> Inode:
    if not path.is_dir():
        return Inode(False, path.read_bytes())
    inode = Inode(True, live={name: _read(path / name) for name in os.listdir(path)})
    inode.sync()
    return inode


def _write(inode: Inode, path: Path, chance: random.Random) -> None:
    if not inode.folder:
        path.write_bytes(inode.durable)
        return
    path.mkdir(exist_ok=True)
    entries = dict(inode.shown)
    _apply(entries, inode.pending[: chance.randint(0, len(inode.pending))])
    for name, entry in entries.items():
        _write(entry, path / name, chance)
