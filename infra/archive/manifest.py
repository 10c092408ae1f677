"""The archive manifest: the archived objects and their proof."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from infra.archive.bucket import ArchivedObject
from infra.errors import PermanentError
from trainer.contract import step_folder, step_of_folder
from trainer.contract.frozen import Frozen

MANIFEST_NAME = "archive-manifest.json"
GOLDEN, EXPORT, DATA, RECORD, SOURCE, JOB_EXPORT = "golden", "huggingface", "data", "record", "source", "export"
"""Folders below the campaign's prefix: checkpoint, exported model, tokenizer and held-out split, record, a workload's
code and what it has exported."""
UNPROVEN = "unproven"
"""The folder of what is copied as it is."""


class EvaluationProof(StrEnum):
    """What the restored checkpoint had to equal: bit for bit, unless a tolerance is named."""

    RECORDED = "recorded in training"
    EVALUATED = "evaluated before upload"
    """Evaluated on the shared tier, since training stopped between two evaluations."""
    NEAR_RECORDED = "recorded in training, within the stated tolerance"
    NEAR_EVALUATED = "evaluated before upload, within the stated tolerance"
    READ_BACK = "read back from S3, every byte"
    """A workload's checkpoint, which only its own code can evaluate."""
    BY_THE_JOB = "evaluated by the job's own command"
    BY_THE_JOB_TWICE = "evaluated by the job's own command, its export within the tolerance"


NEAR = {
    EvaluationProof.RECORDED: EvaluationProof.NEAR_RECORDED,
    EvaluationProof.EVALUATED: EvaluationProof.NEAR_EVALUATED,
}
"""The proof of a loss that is not equal, but within the tolerance."""


class ArchiveManifest(Frozen):
    campaign: str
    identity: str = ""
    """Identity of the campaign; empty in archives that are older than identities."""
    step: int
    tokens: int
    proof: EvaluationProof
    recorded_evaluation_loss: float | None
    """Loss from training; None if the step was not evaluated."""
    reference_evaluation_loss: float | None
    """Loss that the restored model had to equal: the recorded one, or the shared tier's before the upload."""
    restored_evaluation_loss: float | None
    """Loss of the model restored from the bytes that were read back; None of a workload."""
    metrics: dict[str, float] = {}
    """Of a workload's checkpoint, by the job's own evaluation."""
    export_metrics: dict[str, float] | None = None
    """The same of its export."""
    tolerance: float | None = None
    """Largest relative difference that the proof allowed. None: the built-in trainer's loss was equal, or no proof."""
    export: str = ""
    """Folder of the export below the campaign's prefix; empty without one."""
    unproven: str = ""
    """Key of the manifest of what is copied as it is beside the checkpoint, since no format recognises it; empty if
    nothing is."""
    objects: tuple[ArchivedObject, ...]
    refused: tuple[str, ...]
    """Newer checkpoints that were not sound, each with the reason."""

    @property
    def accounts_for(self) -> int:
        """Newest step that is archived or listed as refused."""
        return max(self.step, *(step_of_folder(row.partition(":")[0]) or -1 for row in self.refused), -1)

    def summary(self) -> dict[str, Any]:
        """Return what the campaign's record has of it."""
        facts = {
            "step": self.step,
            "identity": self.identity,
            "accounts_for": self.accounts_for,
            "proof": self.proof,
            "recorded_evaluation_loss": self.recorded_evaluation_loss,
            "reference_evaluation_loss": self.reference_evaluation_loss,
            "restored_evaluation_loss": self.restored_evaluation_loss,
            "objects": len(self.objects),
            "bytes": sum(item.size_bytes for item in self.objects),
            "refused": list(self.refused)[:5],
        }
        if self.proof is not EvaluationProof.READ_BACK or self.export:
            optional = ("metrics", "export_metrics", "tolerance", "export")
            facts |= {name: value for name in optional if (value := getattr(self, name))}
        return facts

    def names(self, step: int) -> bool:
        """Return True if a step is archived or listed as refused."""
        return step == self.step or any(row.startswith(f"{step_folder(step)}:") for row in self.refused)

    def below(self, folder: str) -> tuple[ArchivedObject, ...]:
        return tuple(item for item in self.objects if f"/{folder}/" in item.key)


def parse(body: bytes, campaign: str, identity: str = "") -> ArchiveManifest:
    """Parse a manifest; raise `PermanentError` if it is damaged or of another campaign, also one of this name."""
    try:
        manifest = ArchiveManifest.model_validate_json(body)
    except ValueError as error:
        summary = f"{MANIFEST_NAME}: {str(error).splitlines()[0]}"
        cure = "look at it, move it away, and run the archive again: the shared tier still holds the checkpoint"
        raise PermanentError("the archive manifest is damaged", seen=summary, cure=cure) from error
    if manifest.campaign != campaign:
        raise PermanentError("the archive manifest is of another campaign", seen=manifest.campaign, cure="look at it")
    if manifest.identity != identity:
        raise PermanentError(
            "the archive manifest is of another campaign of this name",
            seen=f"{manifest.identity or 'no identity'}, this campaign has {identity or 'none'}",
            cure="look at it: it is never overwritten; the shared tier still holds the checkpoint",
        )
    return manifest
