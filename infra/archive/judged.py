"""A workload's own judgement of the archived checkpoint: its metrics, and what was exported from it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from infra.archive.bucket import ArchivedObject, Content
from infra.archive.manifest import NEAR, EvaluationProof
from infra.errors import PermanentError
from infra.plain_files import plain_bytes
from trainer.contract.workload import EXPORT_FOLDER, EXPORTED, JUDGEMENT, Judgement


class Unproven(Exception):
    """All bytes of the checkpoint are archived and read back, but the job's own judgement is missing or bad, or another
    `part` of the archive has failed."""

    def __init__(self, reason: str, step: int, objects: list[ArchivedObject], part: str = "") -> None:
        super().__init__(reason)
        size = sum(item.size_bytes for item in objects)
        self.summary: dict[str, Any] = {"unproven": reason, "step": step, "objects": len(objects), "bytes": size}
        self.summary |= {"part": part} if part else {}


def read(root: Path, step: int, sha256: str, no_judgement: str) -> Judgement | None:
    """Return the judgement of an archived step; None if the spec asks for none. `root`: the campaign's folder on the
    shared tier; `sha256`: of the judgement; `no_judgement`: why there is none. What is wrong with it is its `why`."""
    if no_judgement:
        return Judgement(step=step, why=no_judgement)
    if not sha256:
        return None
    try:
        body = plain_bytes(root / EXPORT_FOLDER / JUDGEMENT)
        if hashlib.sha256(body).hexdigest() != sha256:
            return Judgement(step=step, why="the job's judgement is not the one that its pod has told of")
        judgement = Judgement.model_validate_json(body)
    except (OSError, ValueError) as error:
        return Judgement(step=step, why=f"the job's judgement cannot be read: {error}"[:500])
    if judgement.step != step and not judgement.why:
        return Judgement(step=step, why=f"the job has judged step {judgement.step}, and step {step} is archived")
    return judgement


def export_contents(root: Path, judgement: Judgement) -> dict[str, Content]:
    """Return path in the export -> its content. Raises `PermanentError` for one that leads out of the export."""
    base = (root / EXPORT_FOLDER / EXPORTED).resolve()
    for file in judgement.files:
        if not (base / file.name).resolve().is_relative_to(base):
            raise PermanentError("a file of the export lies elsewhere", seen=file.name, cure="export plain files")
    return {file.name: Content(base / file.name, file.size_bytes, file.sha256) for file in judgement.files}


def proof_by(loss: float, reference: float, proof: EvaluationProof, tolerance: float) -> EvaluationProof:
    """Return what the loss of the restored model proves. Raises `PermanentError` if it is another one.

    `tolerance`: relative; for kernels that add in another order each time. An equal loss never needs it.
    """
    if loss == reference:
        return proof
    if abs(loss - reference) <= tolerance * abs(reference):
        return NEAR[proof]
    raise PermanentError(
        "the restored model does not evaluate as the one that was archived",
        seen=f"{loss!r} restored, {reference!r} {proof}, tolerance {tolerance:g}",
        cure="keep the cluster: compare the checkpoint's config and the image's versions; kernels that add in no fixed "
        "order need training.evaluation_tolerance",
    )


def proof_of(judgement: Judgement | None) -> EvaluationProof:
    if judgement is None or not judgement.metrics:
        return EvaluationProof.READ_BACK
    return EvaluationProof.BY_THE_JOB if judgement.exported is None else EvaluationProof.BY_THE_JOB_TWICE
