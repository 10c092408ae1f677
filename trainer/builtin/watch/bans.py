"""What a roll-back leaves for later attempts, on the shared tier: which checkpoints are not trusted, and which steps'
batches are drawn but not trained on. It stays, so that every later attempt repeats it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from trainer.builtin.checkpoint.fence import check_fence
from trainer.builtin.checkpoint.tiers import SharedTier
from trainer.contract import Manifest
from trainer.contract.bans import BANS, Ban, parse_bans
from trainer.errors import StorageError, TrainerError

LONGEST = 10
"""Roll-backs of one campaign; after these a person should look."""


class RolledBack(TrainerError):
    """The attempt ends so that the next one starts from a checkpoint before the trouble."""

    reason = "rolled-back"


def read_bans(shared: SharedTier) -> tuple[Ban, ...]:
    """Return the bans of a campaign, oldest first. Raises `StorageError` for one that cannot be read."""
    try:
        return parse_bans(shared.notes())
    except ValueError as error:
        cure = "remove it to do without"
        raise StorageError("what the watch has left cannot be read", f"{shared}/{BANS}/{error}", cure) from error


def write_ban(shared: SharedTier, ban: Ban) -> None:
    check_fence(shared.marks, ban.attempt)
    shared.leave(f"ban-{ban.attempt:04d}-{ban.first:08d}.json", json.dumps(asdict(ban)).encode())


def possible(ban: Ban, known: Sequence[Ban], committed: Sequence[Manifest]) -> str:
    """Return why a roll-back is not possible; empty when it is."""
    if len(known) >= LONGEST:
        return f"{len(known)} roll-backs already"
    trusted = [one for one in committed if not any(each.refuses(one) for each in (*known, ban))]
    if not trusted:
        return "no checkpoint before it lies on the shared tier"
    return ""
