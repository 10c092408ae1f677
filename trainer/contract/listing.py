"""The list of checkpoints on a tier, from manifests and file sizes only."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from trainer.contract.frozen import Frozen
from trainer.contract.rows import Row, rows_of
from trainer.contract.sealed import MANIFEST

CHECKPOINTS_PATH = "/checkpoints"
"""The agent's path for its local tier's `Listing` as JSON."""
VERDICTS_PATH = "/verdicts/"
"""Followed by a step: the agent reads every byte of it on the local tier and answers with a `StepVerdict`."""


class StepVerdict(Frozen):
    """The verdict on a committed step after every byte of it at one place was read."""

    tier: str = ""
    node: str = ""
    """Node of a local tier."""
    step: int
    bytes: int
    faults: tuple[tuple[str, str], ...] = ()
    """(shard, fault)."""

    @property
    def sound(self) -> bool:
        return not self.faults


class Listed(Frozen):
    """A step on a tier."""

    tier: str
    """local, shared, archive, or the given place."""
    node: str = ""
    """Node of a local tier."""
    step: int
    committed: bool
    why: str = ""
    """Reason why it is not committed, or the part of it that is not here."""
    damaged: bool = False
    """Its manifest is not valid. A step without a manifest is not damaged but was never committed."""
    attempt: int | None = None
    tokens: int | None = None
    loss: float | None = None
    evaluation_loss: float | None = None
    world_size: int | None = None
    zero_stage: int | None = None
    shards: int = 0
    here: int = 0
    """Shards that are here with their full size; a node's disk holds only its ranks' shards."""
    bytes: int = 0
    """Size of those shards."""
    name: str = Field(default="", exclude_if=lambda name: not name)
    """Path of the checkpoint below the job's own folder; empty: the built-in trainer's, or not known."""


class Listing(Frozen):
    rows: tuple[Listed, ...]


def list_folder(folder: Path, tier: str, campaign: str = "", node: str = "") -> list[Listed]:
    """Return the steps in a folder of `step-<8 digits>` folders, newest first, unreadable ones included."""
    return [parse_row(row) for row in rows_of(folder, tier, campaign, node)]


def parse_row(row: Row) -> Listed:
    """Return a row as a model; a manifest with a valid seal over wrong types is damaged too."""
    try:
        return Listed.model_validate(row)
    except ValidationError as error:
        reason = f"{MANIFEST}: {error.errors()[0]['msg']}"
        place = {name: row[name] for name in ("tier", "node", "step")}
        return Listed(**place, committed=False, why=reason, damaged=True)
