"""Room on a full tier: a write is repeated once after everything dispensable is removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.builtin.checkpoint.files import NO_ROOM
from trainer.builtin.checkpoint.tiers import SharedTier, Tier
from trainer.errors import StorageError
from trainer.events import emit

_MIB = 2**20


def with_room(
    tier: SharedTier, needed_bytes: int, reclaim: Callable[[], Sequence[int | str]], write: Callable[[], None]
) -> None:
    """Run `write`; when the tier is full, run `reclaim` (which returns what it dropped) and `write` again. Raises
    `StorageError` with the free space when that was not enough."""
    try:
        write()
    except OSError as error:
        if error.errno not in NO_ROOM or not isinstance(tier, Tier):  # S3 is never full
            raise
        removals = reclaim()
        emit("reclaimed", tier=tier.name, dropped=list(removals), needed_bytes=needed_bytes, why=str(error.strerror))
        try:
            write()
        except OSError as second_error:
            if second_error.errno not in NO_ROOM:
                raise
            raise StorageError(
                f"the {tier.name} tier is full",
                f"{tier.root}: {needed_bytes / _MIB:.1f} MiB needed, {free(tier.root)}, dropped: {list(removals)}",
                f"enlarge the tier, or lower checkpoint.keep_{tier.name}; what was committed before is untouched",
            ) from second_error


def free(path: Path) -> str:
    """Describe free space and inodes."""
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return f"{status.f_bavail * status.f_frsize / _MIB:.1f} MiB and {status.f_favail} inodes free"


def state_bytes(state: Any) -> int:
    """Return the bytes of the tensors in a state, each storage once; the file is slightly larger."""
    bytes_by_pointer: dict[int, int] = {}

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            bytes_by_pointer[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            for item in value.values():
                walk(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                walk(item)

    walk(state)
    return sum(bytes_by_pointer.values())
