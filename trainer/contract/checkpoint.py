"""The format of a committed checkpoint: a folder of shards and a manifest that was written last; and what a roll-back
leaves on the shared tier: which checkpoints nobody trusts, and which batches are skipped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.contract.frozen import Frozen
from trainer.contract.ledger import Consumed
from trainer.contract.model.layout import Layout
from trainer.contract.sealed import attempt_folder
from trainer.contract.training import ParallelConfig

FROZEN = "frozen_"
"""Beginning of the names of files with weights that do not train."""


class Shard(Frozen):
    file: str = Field(pattern=r"^attempt-\d{4,}/[^/.][^/]*$")
    """Path relative to the step folder and within it."""
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    rank: int

    @property
    def common(self) -> bool:
        """Every rank loads it: the model's states."""
        return self.file.rpartition("/")[2].removeprefix(FROZEN).startswith("mp_rank_")

    @property
    def is_frozen(self) -> bool:
        """It has weights that do not train, and is the same in all steps."""
        return self.file.rpartition("/")[2].startswith(FROZEN)


class Manifest(Frozen):
    """Written last and atomically on every node that holds shards, with the same bytes everywhere."""

    format: Literal[2, 3, 4, 5] = 4
    """2 has no ledger, 3 no identity; both are still read. 5 has a layout beyond data parallelism."""
    campaign: str
    identity: str = ""
    """The campaign's identity, since its name may have been used before; empty if unknown, as after an import."""
    attempt: int
    generation: int = Field(default=0, exclude_if=lambda number: number == 0)
    """Start of the ranks within the attempt; left out at the first, as by versions that knew no other."""
    step: int
    tokens: int
    world_size: int
    zero_stage: int
    parallel: ParallelConfig | None = Field(default=None, exclude_if=lambda layout: layout is None)
    """Which of the ranks share matrices or sequences; None: none do."""
    position: int
    """Data position: sequences consumed so far, over all ranks."""
    loss: float | None
    """Training loss at this step; None if unknown, as after an import."""
    evaluation_loss: float | None = None
    """Held-out loss at this step, when it was evaluated (always at the last step)."""
    config_digest: str
    data_digest: str
    code_digest: str = ""
    image_digest: str = ""
    consumed: tuple[Consumed, ...] = ()
    """Ledger of the data from the first step to this one, over all attempts; see `bivouac data audit`."""
    shards: tuple[Shard, ...]
    """Every shard of every rank; a node's folder may hold only its own."""
    rng_included: bool = True
    seal: str = ""
    """SHA-256 over everything else: it detects a changed digit in a position or a step."""

    @model_validator(mode="after")
    def _names_each_file_once(self) -> Self:
        folder = attempt_folder(self.attempt)
        names = [shard.file for shard in self.shards]
        if len(set(names)) != len(names) or any(not name.startswith(f"{folder}/") for name in names):
            raise ValueError(f"its shards are not one file each below {folder}")
        if any(getattr(self, name) for name in _unknown(self.format)):
            raise ValueError(f"a manifest of format {self.format} has no {' and no '.join(_unknown(self.format))}")
        return self

    @property
    def layout(self) -> Layout:
        return Layout.of(self.parallel, self.world_size)

    def serialize(self) -> bytes:
        """Return the file's content with its seal; equal manifests give equal bytes."""
        unknown = set(_unknown(self.format))
        plain = self.model_copy(update={"seal": ""}).model_dump_json(exclude=unknown).encode()
        manifest = self.model_copy(update={"seal": hashlib.sha256(plain).hexdigest()})
        return manifest.model_dump_json(indent=1, exclude=unknown).encode() + b"\n"


class Foreign(ValueError):
    """A checkpoint of another campaign that has or had the same name."""


def parse_manifest(
    content: bytes, step: int | None = None, campaign: str | None = None, identity: str = ""
) -> Manifest:
    """Parse a manifest. Raises `ValueError` (one line) for bytes that `serialize` did not write.

    Also raises it for another step or campaign than given, and `Foreign` for another identity.
    """
    try:
        manifest = Manifest.model_validate_json(content)
    except ValueError as error:
        raise ValueError(f"no manifest: {'; '.join(str(error).splitlines()[1:3]) or error}") from error
    if manifest.serialize() != content:
        raise ValueError("its seal does not fit its content")
    if (manifest.step if step is None else step, campaign or manifest.campaign) != (manifest.step, manifest.campaign):
        raise ValueError(f"it is of step {manifest.step} of campaign {manifest.campaign}")
    if identity and manifest.identity not in ("", identity):
        raise Foreign(f"it is of another campaign of this name: {manifest.identity}, this one is {identity}")
    return manifest


def _unknown(number: int) -> tuple[str, ...]:
    """Return the fields that a format does not have."""
    return {2: ("consumed", "identity", "parallel"), 3: ("identity", "parallel"), 4: ("parallel",)}.get(number, ())


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
