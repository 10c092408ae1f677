"""Where checkpoints lie: `<tier>/<campaign>/step-<8 digits>/manifest.json` and shards below `attempt-<4 digits>/`.

Shards of different attempts never share a folder, so that a stale attempt cannot touch the shards of a newer one, and
a step that is trained again replaces its predecessor by one rename of the manifest.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.files import durable
from trainer.contract import COMMITTED_NAME, Manifest, step_folder, step_of_folder


def attempt_folder(attempt: int) -> str:
    return f"attempt-{attempt:04d}"


@dataclass(frozen=True)
class Tier:
    """One tier's folder of one campaign."""

    name: str
    root: Path

    def folder(self, step: int) -> Path:
        return self.root / step_folder(step)

    def steps(self) -> list[int]:
        """Steps with a folder, committed or not, newest first."""
        if not self.root.is_dir():
            return []
        found = (step_of_folder(entry.name) for entry in self.root.iterdir())
        return sorted((step for step in found if step is not None), reverse=True)

    def manifests(self) -> Iterator[tuple[int, bytes]]:
        """Steps that claim to be committed, with their manifest as it lies there; newest first."""
        for step in self.steps():
            path = self.folder(step) / COMMITTED_NAME
            if path.is_file():
                yield step, path.read_bytes()

    def publish(self, manifest: Manifest) -> None:
        """Make a step committed: the manifest appears, whole and durable, after everything that it names."""
        with durable(self.folder(manifest.step) / COMMITTED_NAME) as file:
            file.write(serialize(manifest))

    def retain(self, keep: int, newest: int, protected: Collection[int]) -> list[int]:
        """Drop what is older than the `keep` newest committed steps up to `newest`; returns the steps dropped.

        Steps after `newest` are leftovers that a restore refused; they are replaced when training gets there again.
        """
        committed = [step for step, _ in self.manifests() if step <= newest]
        kept = {*committed[:keep], *protected}
        dropped = [step for step in self.steps() if step < newest and step not in kept]
        for step in dropped:
            (self.folder(step) / COMMITTED_NAME).unlink(missing_ok=True)
            shutil.rmtree(self.folder(step), ignore_errors=True)
        return dropped

    def drop_other_attempts(self, manifest: Manifest) -> None:
        """Remove shards of earlier attempts at this step, which its manifest no longer names."""
        for entry in self.folder(manifest.step).glob("attempt-*"):
            if entry.name < attempt_folder(manifest.attempt):
                shutil.rmtree(entry, ignore_errors=True)


@dataclass(frozen=True)
class Tiers:
    local: Tier
    shared: Tier

    def __iter__(self) -> Iterator[Tier]:
        return iter((self.local, self.shared))


def campaign_tiers(local: Path, shared: Path, campaign: str) -> Tiers:
    return Tiers(Tier("local", local / campaign), Tier("shared", shared / campaign))


def serialize(manifest: Manifest) -> bytes:
    return manifest.model_dump_json(indent=1).encode() + b"\n"
