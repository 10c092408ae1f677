"""Checkpoints: restored, refused, copied to S3 and back, and what is no known checkpoint."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, FiniteFloat

from infra.console.words import plural, size
from infra.record.payloads.base import Count, Payload, PrintedPayload, Text, Whole
from infra.spec.notify import Change
from trainer.contract.job import Name


class CheckpointRefused(
    PrintedPayload, kind="checkpoint.refused", line="refused_shard", needed=("step",), watched=True
):
    step: Count | None = None
    tier: Name | None = None
    file: Text | None = None
    wanted: Text | None = None
    seen: Text | None = None

    @property
    def place(self) -> str:
        return f"rank {self.rank}, {self.file}"

    def sentence(self) -> str:
        return f"checkpoint of step {self.step} refused on the {self.tier} tier: {self.place}"


class CheckpointRestored(PrintedPayload, kind="checkpoint.restored", line="restored", needed=("step",), watched=True):
    step: Count | None = None
    of_attempt: Count | None = None
    position: Count | None = None
    tier: Name | None = None
    parameters: Count | None = None

    def sentence(self) -> str:
        return f"step {self.step} restored"


class CheckpointCopied(Payload, kind="checkpoint.copied", watched=True):
    step: Whole
    place: str | None = None
    bytes: Whole = 0

    def sentence(self) -> str:
        return f"step {self.step} copied to S3, {size(self.bytes)} read back: {self.place}"


class CheckpointCopyFailed(Payload, kind="checkpoint.copy-failed", watched=True):
    error: str | None = None

    def sentence(self) -> str:
        return f"no copy to S3, training goes on and the next interval tries again: {self.error}"


class CheckpointFetched(Payload, kind="checkpoint.fetched", watched=True):
    attempt: Whole
    """That is launched with it."""
    step: Whole
    bytes: Whole = 0
    refused: tuple[str, ...] = ()

    def sentence(self) -> str:
        refusals = f"; refused: {'; '.join(self.refused)}" if self.refused else ""
        return f"step {self.step} is back from S3, {size(self.bytes)}{refusals}"


class CheckpointFetchFailed(Payload, kind="checkpoint.fetch-failed", watched=True):
    error: str | None = None

    def sentence(self) -> str:
        return f"no checkpoint came back from S3: {self.error}"


class Doubt(PrintedPayload, notice=Change.CHECKPOINTS, watched=True):
    """A checkpoint in doubt. People are told once in an attempt of each `subject`: a job saves often."""

    step: Annotated[int, Field(strict=True, ge=-1, le=10**15)] | None = None
    """-1: none yet."""
    of_attempt: Count | None = None
    why: Text | None = None

    @property
    def subject(self) -> str:
        """What is equal for the same doubt about another step: the reason without its numbers."""
        return re.sub(r"\d+", "", self.why or "")


class CheckpointUnrecognised(Doubt, kind="checkpoint.unrecognised", line="unrecognised", needed=("files", "bytes")):
    """What lies in the job's folder and is no checkpoint that is recognised."""

    files: Count = 0
    bytes: Count = 0
    newest: Text = ""
    """Path of the newest file."""
    fits: Text = ""
    """A format that would recognise it; empty: none is known."""

    @property
    def empty(self) -> bool:
        """True if somebody has counted, and no file is left."""
        return self.files == 0 and "files" in self.model_fields_set

    def sentence(self) -> str:
        newest = f", the newest {self.newest}" if self.newest else ""
        fits = f"; `format: {self.fits}` would fit" if self.fits else ""
        return f"{amount(self.files, self.bytes)} of the job are no known checkpoint{newest}: {self.why}{fits}"


class CheckpointNotSealed(Doubt, kind="checkpoint.not-sealed", line="not_sealed", needed=("step",)):
    def sentence(self) -> str:
        return f"step {self.step} is not sealed: {self.why}"


class CheckpointLookFailed(Doubt, kind="checkpoint.look-failed", line="look_failed", needed=("why",)):
    """A supervisor's look for finished checkpoints: no step is known to be unsealed."""

    def sentence(self) -> str:
        return f"nobody knows what the job has saved since its supervisor could not look: {self.why}"


class CheckpointStepRefused(Doubt, kind="checkpoint.step-refused", line="refused_step", needed=("step",)):
    def sentence(self) -> str:
        return f"step {self.step} is refused: {self.why}"


class CheckpointWeightsOnly(Doubt, kind="checkpoint.weights-only", line="weights_only", needed=("why",)):
    def sentence(self) -> str:
        return f"the job's checkpoints are weights alone: {self.why}"


class TrainingStartedOver(Doubt, kind="training.started-over"):
    before: Whole | None = None
    """Newest step that was trained."""

    def sentence(self) -> str:
        beginning = f"attempt {self.attempt} begins again at step 0 although step {self.before} was trained"
        return f"{beginning}: {self.why}"


class TrainingResumedElsewhere(
    Doubt, kind="training.resumed-elsewhere", line="resumed_elsewhere", needed=("offered", "first")
):
    offered: Count | None = None
    first: Count | None = None
    """The first step that the job reports."""

    def sentence(self) -> str:
        beginning = f"the job was given the checkpoint of step {self.offered}, and the first step it reports is"
        return f"{beginning} {self.first}: it did not go on from there"


class TrainingLossJumped(Doubt, kind="training.loss-jumped", line="loss_jumped", needed=("step", "before", "now")):
    before: FiniteFloat | None = None
    now: FiniteFloat | None = None
    """Losses of the same step."""

    def sentence(self) -> str:
        losses = f"{self.before} before the restart and {self.now} after it"
        return f"the loss of step {self.step} was {losses}: the job may not have restored all of its state"


def amount(files: int, size_bytes: int) -> str:
    return f"{plural(files, 'file')} ({size(size_bytes)})"
