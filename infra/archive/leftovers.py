"""What becomes of a job's unrecognised content at the archive: beside the golden checkpoint, or instead of one."""

from __future__ import annotations

from typing import Any, NoReturn

from botocore.exceptions import BotoCoreError, ClientError

from infra.archive.bucket import ArchiveBucket
from infra.archive.judged import Unproven
from infra.archive.settings import ArchiveConfig, Places
from infra.archive.source import Source
from infra.archive.unproven import Left, UnprovenCopy, left_of
from infra.errors import BivouacError, PermanentError
from trainer.contract.workload import WORKLOAD_CONFIG, WorkloadConfig


class OnlyCopied(Exception):
    """No checkpoint was ever committed; what the job left is copied as it is."""

    def __init__(self, copy: dict[str, Any]) -> None:
        super().__init__(copy["why"])
        self.summary = {"copied": copy}


class Leftovers:
    def __init__(self, config: ArchiveConfig, bucket: ArchiveBucket, places: Places, source: Source) -> None:
        self.config, self.bucket, self.places, self.source = config, bucket, places, source
        self.copy = UnprovenCopy(bucket, config.campaign, config.identity, config.attempt)

    def manifest_key(self) -> str:
        """Return the key of the manifest of what will be copied beside the golden checkpoint; empty only if it is known
        that there is nothing."""
        try:
            return self.copy.manifest_key if self._left() else ""
        except (PermanentError, OSError):
            return self.copy.manifest_key  # the copy itself will say why

    def copy_beside(self, step: int) -> dict[str, Any]:
        """Copy what is not of step `step`, which is in the archive. Return the data of `archive.unproven`, empty if
        there was nothing. Raises `Unproven` if the copy fails."""
        try:
            left = self._left()
            return self.copy.send(left) if left else {}
        except (BivouacError, OSError, ClientError, BotoCoreError) as error:
            raise Unproven(f"{error}"[:2000], step, [], "the copy of what else the job left") from error

    def end(self) -> NoReturn:
        """Copy all of the job's folder, since no checkpoint is sound.

        Raises `OnlyCopied` if none was ever committed, else `PermanentError`: damaged ones are for a person.
        """
        left = self._left(entire=True)
        copy_summary = self.copy.send(left) if left else {}
        if copy_summary and not self.source.refused and self.config.committed_step < 0:
            raise OnlyCopied(copy_summary)
        copy_note = f"; all that the job left is at {copy_summary['prefix']} as it is" if copy_summary else ""
        raise PermanentError(
            "no sound checkpoint is on the shared tier",
            seen=("; ".join(self.source.refused) or "none at all") + copy_note,
            cure="nothing can be archived; see the trainer's logs",
        )

    def _left(self, entire: bool = False) -> Left:
        """Return what is to be copied as it is. A job whose newest steps were refused may still have them itself, and
        nodes with disks of their own bring only what is unrecognised: then it is all of the folder."""
        job = self.places.config.with_name(WORKLOAD_CONFIG)
        local = (
            self.config.workload and WorkloadConfig.model_validate_json(job.read_bytes()).checkpoints.tier == "local"
        )
        return left_of(self.source.root, entire or local or bool(self.source.refused))
