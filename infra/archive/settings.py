"""What the archive's program is given: its configuration, its places, and the functions that need torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import CONFIG_FILE, DATA_MOUNT, SHARED_CHECKPOINTS
from trainer.contract.frozen import Frozen


class ArchiveConfig(Frozen):
    campaign: str
    identity: str = ""
    """Identity of the campaign; empty if it is older than identities."""
    attempt: int = 0
    """Newest attempt, according to the record."""
    committed_step: int = -1
    """Newest committed step on the shared tier, according to record or steward; -1: none."""
    region: str
    state_bucket: str
    archive_bucket: str
    bucket_root: str = ""
    """Folder of all that the project writes in both buckets, with a slash; empty: their top."""
    image_manifest: str
    """Key in the state bucket."""
    shared_tier: str = ""
    """`s3://bucket/prefix` of the checkpoints, where there is no shared file system."""
    data_source: str = ""
    """`s3://bucket/prefix` of the prepared data, likewise."""
    tolerance: float = 0.0
    """Largest relative difference between the restored model's loss and the one to be equalled."""
    workload: bool = False
    """The checkpoints are of a job of somebody else's: they are read back, not evaluated or exported here."""
    judgement: str = ""
    """SHA-256 of what the job's own evaluation and export have come to; empty if the spec asks for neither."""
    unjudged: str = ""
    """Why that is not there though the spec asks for it."""


@dataclass(frozen=True)
class Places:
    """Input paths of the Job; a pod uses the contract's mounts."""

    shared: Path = Path(SHARED_CHECKPOINTS)
    config: Path = Path(CONFIG_FILE)
    data: Path = Path(DATA_MOUNT)


@dataclass(frozen=True)
class Model:
    """What needs torch, and so runs in another process."""

    evaluate: Callable[[Path, Path | None], float]
    """Held-out loss of a checkpoint folder, whose model is exported into the other folder if there is one; raises
    `PermanentError`."""
