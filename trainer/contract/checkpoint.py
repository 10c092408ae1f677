"""What a committed checkpoint is: a folder of shards and a manifest that was written last."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field

COMMITTED_NAME = "manifest.json"
_STEP = re.compile(r"^step-(\d{8})$")


def step_folder(step: int) -> str:
    """Name of the folder of a step: `<tier>/<campaign>/step-<8 digits>/`."""
    return f"step-{step:08d}"


def step_of_folder(name: str) -> int | None:
    """The step of a folder's name, or None for any other name (temporary ones included)."""
    match = _STEP.match(name)
    return int(match.group(1)) if match else None


class Shard(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """Path relative to the step folder."""
    size_bytes: int = Field(ge=0)
    sha256: str
    rank: int


class Manifest(BaseModel):
    """Written last and atomically on every node that holds shards; the same bytes everywhere."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    campaign: str
    attempt: int
    step: int
    tokens: int
    world_size: int
    zero_stage: int
    position: int
    """Data position: sequences consumed so far, over all ranks."""
    loss: float
    evaluation_loss: float | None = None
    """Held-out loss at this step, when it was evaluated (always at the last step)."""
    config_digest: str
    data_digest: str
    code_digest: str = ""
    image_digest: str = ""
    shards: tuple[Shard, ...]
    """Every shard of every rank: a node's folder may hold only its own."""
    rng_included: bool = True
