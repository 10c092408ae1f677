"""The fence: `<shared>/<campaign>/fence/attempt-<N>`; the highest N is the newest attempt, older ones publish nothing.

Each attempt has an empty file that is never replaced: two attempts that start together cannot lower the fence, and
neither a power loss nor a full disk can leave half of it. A tier in S3 keeps its marks itself.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from trainer.checkpoint.files import make_folder, sync_folder
from trainer.checkpoint.room import with_room
from trainer.checkpoint.tiers import SharedTier
from trainer.contract import attempt_folder
from trainer.errors import Fenced, StorageError

FENCE_NAME = "fence"


class Marks(Protocol):
    """The marks of the attempts that have begun."""

    def begun(self) -> dict[int, float]:
        """Return attempt -> when it began, in seconds since the epoch. Raises `OSError`."""

    def mark(self, attempt: int) -> None:
        """Mark that an attempt has begun; a second time changes nothing."""


def claim(tier: SharedTier, attempt: int) -> None:
    """Raise the fence on the shared tier; if that is full, remove unfinished files of earlier attempts first."""

    def reclaim() -> list[str]:
        return tier.clean((), attempt)  # keeps all steps that have a manifest

    with_room(tier, 0, reclaim, lambda: raise_fence(tier.marks, attempt))


def raise_fence(where: Path | Marks, attempt: int) -> None:
    """Claim the campaign for this attempt. Raises `Fenced` when a newer one has started."""
    check_fence(where, attempt)
    _marks(where).mark(attempt)
    check_fence(where, attempt)


def check_fence(where: Path | Marks, attempt: int) -> None:
    """Raise `Fenced` if the fence names a newer attempt than this one."""
    newest = newest_attempt(where)
    if newest > attempt:
        raise Fenced(
            "a newer attempt of this campaign has started",
            f"attempt {attempt}, fence at {newest}",
            "let this attempt end; only the newest may publish checkpoints",
        )


def newest_attempt(where: Path | Marks) -> int:
    """Return the newest attempt, -1 before the first. Raises `StorageError` when the fence cannot be read."""
    try:
        return max(attempts_begun(where), default=-1)
    except OSError as error:
        at = where / FENCE_NAME if isinstance(where, Path) else where
        seen = f"{at}: {error.strerror or error}"
        raise StorageError("the fence cannot be read", seen, "mend the shared tier") from error


def attempts_begun(where: Path | Marks) -> dict[int, float]:
    """Return attempt -> when it began, in seconds since the epoch. Raises `OSError`."""
    return _marks(where).begun()


class _FolderMarks:
    def __init__(self, root: Path) -> None:
        self._folder = root / FENCE_NAME

    def begun(self) -> dict[int, float]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        numbers = {name: name.removeprefix("attempt-") for name in names}
        return {int(n): (self._folder / name).lstat().st_mtime for name, n in numbers.items() if n.isdigit()}

    def mark(self, attempt: int) -> None:
        make_folder(self._folder)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._folder / attempt_folder(attempt), os.O_CREAT | os.O_EXCL, 0o644))
        sync_folder(self._folder)


def _marks(where: Path | Marks) -> Marks:
    return _FolderMarks(where) if isinstance(where, Path) else where
