"""The list of checkpoints on a tier, from manifests and file sizes only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from trainer.contract.checkpoint import COMMITTED_NAME, Manifest, parse_manifest, step_of_folder
from trainer.contract.frozen import Frozen
from trainer.contract.tree import own_name

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


def list_folder(folder: Path, tier: str, campaign: str | None = None, node: str = "") -> list[Listed]:
    """Return the steps in a folder of `step-<8 digits>` folders, newest first, unreadable ones included."""
    try:
        steps = [step for path in folder.iterdir() if (step := step_of_folder(path.name)) is not None]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [_look(folder, step, tier, campaign, node) for step in sorted(steps, reverse=True)]


def listed(
    content: bytes | None,
    size_of: Callable[[str], int | None],
    step: int,
    tier: str,
    campaign: str | None,
    node: str,
    read: Callable[[str], bytes] | None = None,
) -> Listed:
    """Return a row, from a manifest's bytes (None: no manifest) and the shards' sizes (None: no shard). `read`: content
    of a shard, for the checkpoint's own name."""
    if content is None:
        return Listed(
            tier=tier, node=node, step=step, committed=False, why="no manifest: never committed, or half gone"
        )
    try:
        manifest = parse_manifest(content, step, campaign)
    except ValueError as error:
        return Listed(tier=tier, node=node, step=step, committed=False, why=f"{COMMITTED_NAME}: {error}", damaged=True)
    row = _row(manifest, size_of, tier, node)
    return (
        row
        if read is None
        else row.model_copy(update={"name": own_name((shard.file for shard in manifest.shards), read)})
    )


def _look(folder: Path, step: int, tier: str, campaign: str | None, node: str) -> Listed:
    place = folder / f"step-{step:08d}"

    def size_of(name: str) -> int | None:
        try:
            return (place / name).lstat().st_size
        except OSError:
            return None

    try:
        content: bytes | None = (place / COMMITTED_NAME).read_bytes()
    except FileNotFoundError:
        content = None
    except OSError as error:
        return Listed(
            tier=tier, node=node, step=step, committed=False, why=f"unreadable: {error.strerror}", damaged=True
        )
    return listed(content, size_of, step, tier, campaign, node, lambda name: (place / name).read_bytes())


def _row(manifest: Manifest, size_of: Callable[[str], int | None], tier: str, node: str) -> Listed:
    here = [shard for shard in manifest.shards if size_of(shard.file) == shard.size_bytes]
    away = len(manifest.shards) - len(here)
    return Listed(
        tier=tier,
        node=node,
        step=manifest.step,
        committed=True,
        why=f"{away} of {len(manifest.shards)} shards are not here" if away else "",
        attempt=manifest.attempt,
        tokens=manifest.tokens,
        loss=manifest.loss,
        evaluation_loss=manifest.evaluation_loss,
        world_size=manifest.world_size,
        zero_stage=manifest.zero_stage,
        shards=len(manifest.shards),
        here=len(here),
        bytes=sum(shard.size_bytes for shard in here),
    )
