"""The checkpoints that the archive chooses from: those of the shared tier, and their interval copies in S3."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infra.archive.bucket import Unsound
from infra.archive.from_s3 import BucketSource
from infra.archive.settings import ArchiveConfig, Places
from infra.archive.source import Source
from infra.spec.names import copies_prefix
from trainer.contract import Manifest, step_folder


class AllTiers(Source):
    """The newest sound step of both is the first one. Of the same step, the shared tier's comes first."""

    def __init__(self, shared: Source, copies: BucketSource) -> None:
        super().__init__(shared.root, shared.identity, shared.committed_step, shared._say)
        self.shared, self.copies = shared, copies
        shared.refused = copies.refused = self.refused

    def steps(self) -> list[int]:
        return [*self.shared.steps(), *self.copies.steps()]

    def candidates(self) -> Iterator[tuple[Path, Manifest]]:
        shared = self.shared.candidates()
        row = next(shared, None)
        for step in self.copies.steps():
            while row is not None and row[1].step >= step:
                yield row
                row = next(shared, None)
            # Whoever asks on has refused all that came before.
            folder = self.copies.root / step_folder(step)
            try:
                manifest = self.copies.brought(step, folder, self.shared.bans())
            except (Unsound, ValueError) as error:
                self.refuse(folder, f"its copy in S3: {error}")
            else:
                yield folder, manifest
            shutil.rmtree(folder, ignore_errors=True)
        while row is not None:
            yield row
            row = next(shared, None)


def source_of(config: ArchiveConfig, s3: Any, places: Places, work: Path, say: Callable[..., None]) -> Source:
    """Return all that the archive may choose from. `work`: a folder of the node's disk for what comes from S3."""
    root = places.shared / config.campaign
    if config.shared_tier:
        return BucketSource(config, s3, root, say)
    copies = f"s3://{config.archive_bucket}/{copies_prefix(config.campaign, config.identity)}"
    shared = Source(root, config.identity, config.committed_step, say)
    return AllTiers(shared, BucketSource(config, s3, work / "copies" / config.campaign, say, copies))
