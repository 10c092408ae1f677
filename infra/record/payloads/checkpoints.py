"""Checkpoints: restored, refused, copied to S3 and back, and what is no known checkpoint."""

from __future__ import annotations

from datetime import datetime

from infra.console.words import plural, size
from infra.record.kinds import Kind
from infra.record.payloads.base import Payload, Update, Whole
from infra.record.state import CampaignState
from infra.spec.notify import Change


class CheckpointRefused(Payload):
    kind = Kind.CHECKPOINT_REFUSED
    watched = True

    attempt: Whole | None = None
    pod: str | None = None
    step: Whole | None = None
    tier: str | None = None
    rank: Whole | None = None
    file: str | None = None
    wanted: str | None = None
    seen: str | None = None

    @property
    def place(self) -> str:
        return f"rank {self.rank}, {self.file}"

    def sentence(self) -> str:
        return f"checkpoint of step {self.step} refused on the {self.tier} tier: {self.place}"


class CheckpointRestored(Payload):
    kind = Kind.CHECKPOINT_RESTORED
    watched = True

    attempt: Whole | None = None
    pod: str | None = None
    step: Whole | None = None
    tier: str | None = None

    def sentence(self) -> str:
        return f"step {self.step} restored"


class CheckpointCopied(Payload):
    kind = Kind.CHECKPOINT_COPIED
    watched = True

    step: Whole
    place: str | None = None
    bytes: Whole = 0

    def sentence(self) -> str:
        return f"step {self.step} copied to S3, {size(self.bytes)} read back: {self.place}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"copied": self.step, "copy_tried_at": at}


class CheckpointCopyFailed(Payload):
    kind = Kind.CHECKPOINT_COPY_FAILED
    watched = True

    error: str | None = None

    def sentence(self) -> str:
        return f"no copy to S3, training goes on and the next interval tries again: {self.error}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"copy_tried_at": at}


class CheckpointFetched(Payload):
    kind = Kind.CHECKPOINT_FETCHED
    watched = True

    attempt: Whole
    """That is launched with it."""
    step: Whole
    bytes: Whole = 0
    refused: tuple[str, ...] = ()

    def sentence(self) -> str:
        refused = f"; refused: {'; '.join(self.refused)}" if self.refused else ""
        return f"step {self.step} is back from S3, {size(self.bytes)}{refused}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"copied": self.step, "fetched": (self.attempt, self.step)}


class CheckpointFetchFailed(Payload):
    kind = Kind.CHECKPOINT_FETCH_FAILED
    watched = True

    error: str | None = None

    def sentence(self) -> str:
        return f"no checkpoint came back from S3: {self.error}"


class Doubt(Payload):
    """A checkpoint in doubt."""

    notice = Change.CHECKPOINTS
    watched = True
    in_doubt = True

    pod: str | None = None
    attempt: Whole | None = None
    step: Whole | None = None
    why: str | None = None


class CheckpointUnrecognised(Doubt):
    """What lies in the job's folder and is no checkpoint that is recognised."""

    kind = Kind.CHECKPOINT_UNRECOGNISED

    files: Whole = 0
    bytes: Whole = 0
    newest: str = ""
    """Path of the newest file."""
    fits: str = ""
    """A format that would recognise it; empty: none is known."""

    def sentence(self) -> str:
        newest = f", the newest {self.newest}" if self.newest else ""
        fits = f"; `format: {self.fits}` would fit" if self.fits else ""
        return f"{amount(self.files, self.bytes)} of the job are no known checkpoint{newest}: {self.why}{fits}"


class CheckpointNotSealed(Doubt):
    kind = Kind.CHECKPOINT_NOT_SEALED

    def sentence(self) -> str:
        return f"step {self.step} is not sealed: {self.why}"


class CheckpointStepRefused(Doubt):
    kind = Kind.CHECKPOINT_STEP_REFUSED

    def sentence(self) -> str:
        return f"step {self.step} is refused: {self.why}"


class CheckpointWeightsOnly(Doubt):
    kind = Kind.CHECKPOINT_WEIGHTS_ONLY

    def sentence(self) -> str:
        return f"the job's checkpoints are weights alone: {self.why}"


class TrainingStartedOver(Doubt):
    kind = Kind.TRAINING_STARTED_OVER

    before: Whole | None = None
    """Newest step that was trained."""

    def sentence(self) -> str:
        begun = f"attempt {self.attempt} begins again at step 0 although step {self.before} was trained"
        return f"{begun}: {self.why}"


class TrainingResumedElsewhere(Doubt):
    kind = Kind.TRAINING_RESUMED_ELSEWHERE

    offered: Whole | None = None
    first: Whole | None = None
    """The first step that the job reports."""

    def sentence(self) -> str:
        begun = f"the job was given the checkpoint of step {self.offered}, and the first step it reports is"
        return f"{begun} {self.first}: it did not go on from there"


class TrainingLossJumped(Doubt):
    kind = Kind.TRAINING_LOSS_JUMPED

    before: float | None = None
    now: float | None = None
    """Losses of the same step."""

    def sentence(self) -> str:
        losses = f"{self.before} before the restart and {self.now} after it"
        return f"the loss of step {self.step} was {losses}: the job may not have restored all of its state"


def amount(files: int, size_bytes: int) -> str:
    return f"{plural(files, 'file')} ({size(size_bytes)})"
