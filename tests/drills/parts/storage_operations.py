"""The file operations of a rank, seen from outside the product: counted, killed at the Nth, or recorded for a replay.

Installed in a forked rank only. `os` functions are wrapped, opening is seen by an audit hook, and a kill within a
write comes after half of its bytes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.builtin.checkpoint import files

See = Callable[[str, str, str], None]
"""Told before each operation: kind, path, second path."""


class KillAt:
    """SIGKILL before the Nth operation below a folder; what it would have been is written to `said` first."""

    def __init__(self, root: Path, number: int, said: Path) -> None:
        self._root, self._left, self._said = str(root), number, said
        self._lock = threading.Lock()
        self._real_open = os.open

    def __call__(self, kind: str, path: str, other: str) -> None:
        if not path.startswith(self._root):
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                descriptor = self._real_open(self._said, os.O_CREAT | os.O_WRONLY)
                os.write(descriptor, phase_of(kind, path, other).encode())
                if kind != "write":
                    os.kill(os.getpid(), signal.SIGKILL)
        if kind == "write" and self._left == 0:
            raise _Halfway


class Count:
    """How many operations there are, written to a file as they come."""

    def __init__(self, root: Path, said: Path) -> None:
        self._root, self._descriptor = str(root), os.open(said, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def __call__(self, kind: str, path: str, other: str) -> None:
        if path.startswith(self._root):
            os.write(self._descriptor, f"{phase_of(kind, path, other)}\n".encode())


class _Halfway(BaseException):
    """Write half and die."""


def phase_of(kind: str, path: str, other: str) -> str:
    """The protocol's phase that an operation belongs to."""
    name = os.path.basename(other or path)
    tier = "replicate" if "/shared/" in path else "save"
    if kind in ("unlink", "rmdir") and not name.endswith(files.PARTIAL):
        return "prune"
    if "fence" in path:
        return "fence"
    if "manifest.json" in name:
        return f"{tier}: manifest {kind}"
    return f"{tier}: {kind}"


def install(see: See) -> None:
    """From now on every file operation of this process is told to `see` before it happens."""

    def told(name: str, kind: str) -> None:
        real = getattr(os, name)

        def wrapper(path: Any, *rest: Any, **named: Any) -> Any:
            first = _path(path, named.get("dir_fd"))
            other = _path(rest[0], None) if kind in ("rename", "link") and rest else ""
            see(kind, first, other)
            return real(path, *rest, **named)

        setattr(os, name, wrapper)
        for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if real in known:
                known.add(wrapper)  # type: ignore[arg-type]

    kinds = {"replace": "rename", "rename": "rename"}
    for name in ("fsync", "replace", "rename", "link", "unlink", "rmdir", "mkdir"):
        told(name, kinds.get(name, name))
    write = files.DigestingFile.write

    def half(self: Any, content: bytes) -> int:
        try:
            see("write", str(self._file.name), "")
        except _Halfway:
            write(self, memoryview(content).cast("B")[: len(content) // 2].tobytes())
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, content)

    files.DigestingFile.write = half  # type: ignore[method-assign]

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[2] & (os.O_CREAT | os.O_WRONLY):
            see("create", arguments[0], "")

    sys.addaudithook(audit)


def _path(path: Any, folder: int | None) -> str:
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    name = os.fspath(path)
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name) if folder is not None else str(name)
