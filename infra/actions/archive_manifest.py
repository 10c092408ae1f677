"""What lies in the archive and how it was proven."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from infra.actions.archive_bucket import ArchivedObject
from infra.errors import PermanentError

MANIFEST_NAME = "archive-manifest.json"
GOLDEN, EXPORT, DATA, RECORD = "golden", "huggingface", "data", "record"
"""Folders below the campaign's prefix: the sharded form, the exported one, tokenizer and held-out split, the record."""


class Proof(StrEnum):
    """Which evaluation the model restored from the archive had to equal, bit for bit."""

    RECORDED = "recorded in training"
    EVALUATED = "evaluated before upload"
    """On the shared tier, since training was stopped between two evaluations."""


class ArchiveManifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    campaign: str
    step: int
    tokens: int
    proof: Proof
    recorded_evaluation_loss: float | None
    """By training itself; None where the step was not evaluated."""
    reference_evaluation_loss: float
    """What the restored model had to equal: the recorded loss, or that of the shared tier's copy before the upload."""
    restored_evaluation_loss: float
    """Of the model restored from the bytes that were read back."""
    objects: tuple[ArchivedObject, ...]
    refused: tuple[str, ...]
    """Newer checkpoints that were not sound, each with its reason."""

    def below(self, folder: str) -> tuple[ArchivedObject, ...]:
        """The objects of one of the folders."""
        return tuple(item for item in self.objects if f"/{folder}/" in item.key)


def parse(body: bytes, campaign: str) -> ArchiveManifest:
    """Raises `PermanentError` for a damaged manifest and for one of another campaign."""
    try:
        manifest = ArchiveManifest.model_validate_json(body)
    except ValueError as error:
        seen = f"{MANIFEST_NAME}: {str(error).splitlines()[0]}"
        cure = "look at it, move it away, and run the archive again: the shared tier still holds the checkpoint"
        raise PermanentError("the archive manifest is damaged", seen=seen, cure=cure) from error
    if manifest.campaign != campaign:
        raise PermanentError("the archive manifest is of another campaign", seen=manifest.campaign, cure="look at it")
    return manifest
