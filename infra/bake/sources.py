"""The clone's files that go into an image, and the digest of exactly these."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

_LEFT_LYING = ("*~", "#*#", "*.bak", "*.orig", "*.rej", "*.tmp", "*.sw?", "4913")
"""Files of editors, patches and merges; vim probes a folder with the last."""


def sources(root: Path, parts: Iterable[str], excluded: Iterable[str] = ()) -> tuple[Path, ...]:
    """Return the files at and below `parts` in order, without those at and below `excluded`; relative to `root`.

    Skips hidden files, editors' files and Python's cache: they change while somebody only looks, and a needless bake
    costs the time of a held cluster's nodes.
    """
    left_out = {root / path for path in excluded}
    files = []
    for top in (root / part for part in parts):
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and _counts(path.relative_to(root)) and left_out.isdisjoint({path, *path.parents}):
                files.append(path)
    return tuple(files)


def digest_of(root: Path, files: Iterable[Path], *inputs: str) -> str:
    """Return the digest of names and contents, and of other inputs."""
    digest = hashlib.sha256("".join(f"{text}\0" for text in inputs).encode())
    for path in files:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _counts(path: Path) -> bool:
    if any(part.startswith(".") or part == "__pycache__" for part in path.parts):
        return False
    return not any(fnmatch(part, pattern) for part in path.parts for pattern in _LEFT_LYING)
