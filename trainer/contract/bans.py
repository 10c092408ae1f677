"""What a roll-back leaves on the shared tier: which checkpoints nobody trusts, and which batches are skipped.

Attempts, the archive and the interval copies read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainer.contract.checkpoint import Manifest

BANS = "watch"
"""Folder of the bans, on the shared tier beside the steps; one JSON file each."""


@dataclass(frozen=True)
class Ban:
    attempt: int
    """This attempt and earlier ones wrote the checkpoints that are not trusted."""
    first: int
    """First step that is not trusted, and first whose batch is skipped (1-based, as in events)."""
    last: int
    """Last step whose batch is skipped. Lower than `first`: none is skipped."""
    why: str

    def refuses(self, manifest: Manifest) -> bool:
        return manifest.attempt <= self.attempt and manifest.step >= self.first

    def skips(self, step: int) -> bool:
        return self.first <= step <= self.last


def parse_bans(files: Mapping[str, bytes]) -> tuple[Ban, ...]:
    """Return the bans of name -> content, oldest first. Raises `ValueError` that names a file that is none."""
    bans = []
    for name, content in sorted(files.items()):
        try:
            bans.append(Ban(**json.loads(content)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: {error}") from error
    return tuple(bans)


def distrust(bans: Iterable[Ban], manifest: Manifest) -> str:
    """Return why a checkpoint is not trusted; empty when it is."""
    return next((f"the watch distrusts it: {ban.why}" for ban in bans if ban.refuses(manifest)), "")
