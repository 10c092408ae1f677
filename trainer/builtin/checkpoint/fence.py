"""The fence: `<shared>/<campaign>/fence/attempt-<N>`; the highest N is the newest attempt, older ones publish nothing.

Each attempt has an empty file that is never replaced: two attempts that start together cannot lower the fence, and
neither a power loss nor a full disk can leave half of it. Such files also tell of each restart in place, and of each
attempt that ended without a loss of work; they do not fence. A tier in S3 keeps its marks itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path
from typing import Protocol

from trainer.builtin.checkpoint.files import make_folder, sync_folder
from trainer.builtin.checkpoint.room import with_room
from trainer.builtin.checkpoint.tiers import SharedTier
from trainer.contract import attempt_folder
from trainer.errors import Fenced, storage_error

FENCE_NAME = "fence"
_ATTEMPT = re.compile(r"attempt-(\d+)")
_START = re.compile(r"attempt-\d+(-generation-\d+)?")
_LOST_NOTHING = "-lost-nothing"


class Marks(Protocol):
    """The files of a fence."""

    def times(self) -> dict[str, float]:
        """Return name -> when it was made, in seconds since the epoch. Raises `OSError`."""

    def mark(self, name: str) -> None:
        """Make an empty file; a second time changes nothing."""


def claim(tier: SharedTier, attempt: int, generation: int = 0) -> None:
    """Raise the fence on the shared tier; if that is full, remove unfinished files of earlier attempts first."""

    def reclaim() -> list[str]:
        return tier.clean((), attempt)  # keeps all steps that have a manifest

    with_room(tier, 0, reclaim, lambda: raise_fence(tier.marks, attempt, generation))


def raise_fence(place: Path | Marks, attempt: int, generation: int = 0) -> None:
    """Claim the campaign for this attempt. Raises `Fenced` when a newer one has started."""
    check_fence(place, attempt)
    _marks(place).mark(attempt_folder(attempt) + (f"-generation-{generation}" if generation else ""))
    check_fence(place, attempt)


def lost_nothing(place: Path | Marks, attempt: int) -> None:
    """Mark that an attempt committed its last step before it ended. Raises `OSError`."""
    _marks(place).mark(f"{attempt_folder(attempt)}{_LOST_NOTHING}")


def check_fence(place: Path | Marks, attempt: int) -> None:
    """Raise `Fenced` if the fence names a newer attempt than this one."""
    newest = newest_attempt(place)
    if newest > attempt:
        raise Fenced(
            "a newer attempt of this campaign has started",
            f"attempt {attempt}, fence at {newest}",
            "let this attempt end; only the newest may publish checkpoints",
        )


def newest_attempt(place: Path | Marks) -> int:
    """Return the newest attempt, -1 before the first. Raises `StorageError` when the fence cannot be read."""
    try:
        numbers = (_ATTEMPT.fullmatch(name) for name in _marks(place).times())
        return max((int(match[1]) for match in numbers if match), default=-1)
    except OSError as error:
        location = place / FENCE_NAME if isinstance(place, Path) else place
        detail = f"{location}: {error.strerror or error}"
        raise storage_error(error, "the fence cannot be read", detail, "mend the shared tier") from error


def losses(place: Path | Marks) -> tuple[int, float]:
    """Return how often the campaign lost work, and when its first attempt began, in seconds since the epoch; infinity
    before that. Every start but the newest ended with a loss, unless it is marked. Raises `OSError`."""
    times = _marks(place).times()
    starts = [time_s for name, time_s in times.items() if _START.fullmatch(name)]
    lossless = sum(name.endswith(_LOST_NOTHING) for name in times)
    return max(0, len(starts) - 1 - lossless), min(starts, default=math.inf)


class _FolderMarks:
    def __init__(self, root: Path) -> None:
        self._folder = root / FENCE_NAME

    def times(self) -> dict[str, float]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        return {name: (self._folder / name).lstat().st_mtime for name in names if name.startswith("attempt-")}

    def mark(self, name: str) -> None:
        make_folder(self._folder)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL, 0o644))
        sync_folder(self._folder)


def _marks(place: Path | Marks) -> Marks:
    return _FolderMarks(place) if isinstance(place, Path) else place
