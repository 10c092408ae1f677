"""The clone's files that an image is made from: the digest of its inputs covers what goes into it, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

_LEFT_LYING = ("*~", "#*#", "*.bak", "*.orig", "*.rej", "*.tmp", "*.sw?", "4913")
"""Beside a file while somebody edits, patches or merges it; the last is what vim tries a folder with."""


def sources(root: Path, parts: Iterable[str], without: Iterable[str] = ()) -> tuple[Path, ...]:
    """Files at and below `parts`, in order, but for those at and below `without`; all are relative to `root`.

    Never what is hidden, what editors leave lying about, or Python's cache: a bake of a held cluster costs its nodes'
    time, and these change while somebody only looks.
    """
    left_out = {root / path for path in without}
    found = []
    for top in (root / part for part in parts):
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and _counts(path.relative_to(root)) and left_out.isdisjoint({path, *path.parents}):
                found.append(path)
    return tuple(found)


def digest_of(root: Path, files: Iterable[Path], *given: str) -> str:
    """Of names and contents, and of what else goes into the image."""
    digest = hashlib.sha256("".join(f"{one}\0" for one in given).encode())
    for path in files:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _counts(path: Path) -> bool:
    if any(part.startswith(".") or part == "__pycache__" for part in path.parts):
        return False
    return not any(fnmatch(part, pattern) for part in path.parts for pattern in _LEFT_LYING)
