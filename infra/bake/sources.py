"""The project's files that go into an image, and their digest: the same from a clone and from its wheel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path

from infra.folders import ASSETS, asset

NO_CODE = ("infra/campaigns", str(ASSETS))
"""Specs: a comment in one is no reason to bake, least of all for a relaunch on a held cluster. And links."""
_LEFT_LYING = ("*~", "#*#", "*.bak", "*.orig", "*.rej", "*.tmp", "*.sw?", "4913")
"""Files of editors, patches and merges; vim probes a folder with the last."""


def sources(root: Path, parts: Iterable[str], without: Iterable[str] = ()) -> dict[str, Path]:
    """Return name -> file at and below `parts` in order, without those at and below `without`. Names begin at `root`.

    Skips hidden files, editors' files and Python's cache: they change while somebody only looks, and a needless bake
    costs the time of a held cluster's nodes.
    """
    left_out = {Path(name) for name in without}
    files = {}
    for part in parts:
        top = asset(part, root)
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            name = Path(part, path.relative_to(top))
            if path.is_file() and _counts(name) and left_out.isdisjoint({name, *name.parents}):
                files[str(name)] = path
    return files


def digest_of(files: Mapping[str, Path], *inputs: str) -> str:
    """Return the digest of names and contents, and of other inputs."""
    digest = hashlib.sha256("".join(f"{text}\0" for text in inputs).encode())
    for name, path in files.items():
        digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _counts(path: Path) -> bool:
    if any(part.startswith(".") or part == "__pycache__" for part in path.parts):
        return False
    return not any(fnmatch(part, pattern) for part in path.parts for pattern in _LEFT_LYING)
