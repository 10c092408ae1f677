"""What lies in the archive and how it was proven."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from infra.archive.bucket import ArchivedObject
from infra.errors import PermanentError
from trainer.contract import step_folder, step_of_folder

MANIFEST_NAME = "archive-manifest.json"
GOLDEN, EXPORT, DATA, RECORD = "golden", "huggingface", "data", "record"
"""Folders below the campaign's prefix: the sharded form, the exported one, tokenizer and held-out split, the record."""


class EvaluationProof(StrEnum):
    """Which evaluation the model restored from the archive had to equal, bit for bit."""

    RECORDED = "recorded in training"
    EVALUATED = "evaluated before upload"
    """On the shared tier, since training was stopped between two evaluations."""


class ArchiveManifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    campaign: str
    identity: str = ""
    """Of the campaign, beyond its name; empty in archives from before identities were."""
    step: int
    tokens: int
    proof: EvaluationProof
    recorded_evaluation_loss: float | None
    """By training itself; None where the step was not evaluated."""
    reference_evaluation_loss: float
    """What the restored model had to equal: the recorded loss, or that of the shared tier's copy before the upload."""
    restored_evaluation_loss: float
    """Of the model restored from the bytes that were read back."""
    objects: tuple[ArchivedObject, ...]
    refused: tuple[str, ...]
    """Newer checkpoints that were not sound, each with its reason."""

    @property
    def accounts_for(self) -> int:
        """Newest step that this archive holds or names as refused; of anything newer it says nothing."""
        return max(self.step, *(step_of_folder(row.partition(":")[0]) or -1 for row in self.refused), -1)

    def names(self, step: int) -> bool:
        """Whether it holds a step, or says why not."""
        return step == self.step or any(row.startswith(f"{step_folder(step)}:") for row in self.refused)

    def below(self, folder: str) -> tuple[ArchivedObject, ...]:
        """The objects of one of the folders."""
        return tuple(item for item in self.objects if f"/{folder}/" in item.key)


def parse(body: bytes, campaign: str, identity: str = "") -> ArchiveManifest:
    """Raises `PermanentError` for a damaged manifest and for one of another campaign, of this name too."""
    try:
        manifest = ArchiveManifest.model_validate_json(body)
    except ValueError as error:
        seen = f"{MANIFEST_NAME}: {str(error).splitlines()[0]}"
        cure = "look at it, move it away, and run the archive again: the shared tier still holds the checkpoint"
        raise PermanentError("the archive manifest is damaged", seen=seen, cure=cure) from error
    if manifest.campaign != campaign:
        raise PermanentError("the archive manifest is of another campaign", seen=manifest.campaign, cure="look at it")
    if manifest.identity != identity:
        raise PermanentError(
            "the archive manifest is of another campaign of this name",
            seen=f"{manifest.identity or 'no identity'}, this campaign is {identity or 'without one'}",
            cure="look at it: it is never overwritten; the shared tier still holds the checkpoint",
        )
    return manifest
