"""A job's own folder as it stands, listed again only where an entry has come or gone."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

_OURS = re.compile(r"^\.bivouac-laid-back-|^\..+\.[0-9a-f]{16}$")
"""What lay-back, or a change of a tracker, leaves where its node dies."""
_SETTLED_NS = 2 * 10**9
"""Two changes of a folder within one tick of its clock have one time: a listing counts for later only if the folder
had not changed for longer."""
_MOST = 20_000
_listings: dict[Path, tuple[int, FolderListing]] = {}


class Finished(NamedTuple):
    """A checkpoint that its framework has finished."""

    step: int
    """-1: neither its name nor its content tells it."""
    root: Path
    """File or folder that holds all of it."""
    files: tuple[Path, ...] = ()
    """If any: `root` is a folder that also holds other things, and only these files and folders below it are the
    checkpoint."""
    ordinal: int = -1
    """The number in its name, if it counts epochs or saves, or if nothing says what it counts; `step` is -1 for one
    that is known to be no step."""
    settles: bool = False
    """Its format writes nothing last, or writes into it again: it counts once it has not changed for some looks."""
    plain: bool = False
    """No framework wrote it: what else has its step may be another part of it."""
    lacks: bool = False
    """A part that the last ones have is missing: it may be about to come, unless the job has ended well."""

    @property
    def tops(self) -> tuple[Path, ...]:
        """Return the files and folders that are all of it."""
        return self.files or (self.root,)

    @property
    def face(self) -> Path:
        """Return the file or folder whose name is the checkpoint's."""
        return self.tops[0]


class FolderListing(NamedTuple):
    files: frozenset[str]
    folders: frozenset[str]
    links: frozenset[str]
    """Symbolic links: nothing behind them is looked at, it is seen where it lies."""
    others: frozenset[str]


def is_ours(name: str) -> bool:
    return bool(_OURS.match(name))


_NOTHING = FolderListing(frozenset(), frozenset(), frozenset(), frozenset())


def listing(folder: Path) -> FolderListing:
    """Return the entries of a folder, none of one that is gone. Raises `OSError` where it cannot be read."""
    try:
        changed_ns = os.stat(str(folder)).st_mtime_ns
        note = _listings.get(folder)
        if note is not None and note[0] == changed_ns:
            return note[1]
        now = time.time_ns()
        entries = _scan(folder)
    except (FileNotFoundError, NotADirectoryError):
        _listings.pop(folder, None)
        return _NOTHING
    if len(_listings) >= _MOST:
        _listings.clear()
    if changed_ns < now - _SETTLED_NS:
        _listings[folder] = (changed_ns, entries)
    else:
        _listings.pop(folder, None)
    return entries


def _scan(folder: Path) -> FolderListing:
    files: set[str] = set()
    folders: set[str] = set()
    links: set[str] = set()
    other_names: set[str] = set()
    with os.scandir(str(folder)) as entries:
        for entry in entries:
            if entry.is_symlink():
                links.add(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                folders.add(entry.name)
            else:
                (files if entry.is_file(follow_symlinks=False) else other_names).add(entry.name)
    return FolderListing(frozenset(files), frozenset(folders), frozenset(links), frozenset(other_names))
