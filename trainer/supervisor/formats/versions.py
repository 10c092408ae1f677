"""What a checkpoint is at one look: it changes when any of its files is written again."""

from __future__ import annotations

from typing import Tuple

from trainer.supervisor.formats.layouts import is_state
from trainer.supervisor.formats.names import family, number_in_family
from trainer.supervisor.formats.tree import Finished, listing

Version = Tuple[Tuple[str, int, int], ...]
"""Name, size and time of change of each file."""


def version_of(checkpoint: Finished) -> Version:
    """Return what changes when a checkpoint is written again; empty for one that is being removed."""
    rows = []
    try:
        for path in (path for top in checkpoint.tops for path in (sorted(top.rglob("*")) if top.is_dir() else (top,))):
            now = path.lstat()
            rows.append((str(path), now.st_size, now.st_mtime_ns))
    except OSError:
        return ()
    return tuple(rows)


def written_at(version: Version) -> float:
    """Return when the file was written that was written last, in seconds since 1970."""
    return max((changed_ns for _, _, changed_ns in version), default=0) / 1e9


def first_written_at(version: Version) -> float:
    """Return when the file of state was written that was written first, in seconds since 1970."""
    return min((changed_ns for name, _, changed_ns in version if is_state(name)), default=0) / 1e9


def has_later_kin(checkpoint: Finished) -> bool:
    """Return whether a file or folder of a checkpoint's series was written after it."""
    end = written_at(version_of(checkpoint))
    kin = _kin(checkpoint)
    return any(written_at(version_of(Finished(-1, checkpoint.face.parent / name))) > end for name in kin)


def has_larger_kin(checkpoint: Finished) -> bool:
    """Return whether a file or folder of a checkpoint's series has a larger number."""
    kin = _kin(checkpoint)
    return any(number > kin[checkpoint.face.name] for number in kin.values())


def _kin(checkpoint: Finished) -> dict[str, int]:
    """Return the names of a checkpoint's series, its own among them, with their numbers."""
    pattern, face = family(checkpoint.face.name), checkpoint.face
    entries = listing(face.parent)
    names = entries.folders if face.is_dir() else entries.files
    numbers = {name: number_in_family(pattern, name) for name in names} if pattern is not None else {}
    return {name: number for name, number in numbers.items() if number is not None}
