"""The fence: `<shared>/<campaign>/fence/attempt-<N>`; the highest N is the newest attempt, older ones publish nothing.

Each attempt has an empty file that is never replaced: two attempts that start together cannot lower the fence, and
neither a power loss nor a full disk can leave half of it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from trainer.checkpoint.files import make_folder, sync_folder
from trainer.checkpoint.room import with_room
from trainer.checkpoint.tiers import Tier
from trainer.contract import attempt_folder
from trainer.errors import Fenced, StorageError

FENCE_NAME = "fence"


def claim(tier: Tier, attempt: int) -> None:
    """Raise the fence on the shared tier; if that is full, remove unfinished files of earlier attempts first."""

    def reclaim() -> list[str]:
        return tier.clean((), attempt)  # keeps all steps that have a manifest

    with_room(tier, 0, reclaim, lambda: raise_fence(tier.root, attempt))


def raise_fence(root: Path, attempt: int) -> None:
    """Claim the campaign for this attempt. Raises `Fenced` when a newer one has started."""
    check_fence(root, attempt)
    make_folder(root / FENCE_NAME)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(root / FENCE_NAME / attempt_folder(attempt), os.O_CREAT | os.O_EXCL, 0o644))
    sync_folder(root / FENCE_NAME)
    check_fence(root, attempt)


def check_fence(root: Path, attempt: int) -> None:
    """Raise `Fenced` if the fence names a newer attempt than this one."""
    newest = newest_attempt(root)
    if newest > attempt:
        raise Fenced(
            "a newer attempt of this campaign has started",
            f"attempt {attempt}, fence at {newest}",
            "let this attempt end; only the newest may publish checkpoints",
        )


def newest_attempt(root: Path) -> int:
    """Return the newest attempt, -1 before the first. Raises `StorageError` when the fence cannot be read."""
    try:
        names = os.listdir(root / FENCE_NAME)
    except FileNotFoundError:
        return -1
    except OSError as error:
        where = root / FENCE_NAME
        raise StorageError("the fence cannot be read", f"{where}: {error.strerror}", "mend the shared tier") from error
    numbers = (name.removeprefix("attempt-") for name in names)
    return max((int(number) for number in numbers if number.isdigit()), default=-1)
