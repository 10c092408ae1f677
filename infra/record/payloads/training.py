"""The training as a whole: its file system, watch, holds and end, and the archive."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from infra.console.words import plural, size
from infra.record.payloads.attempts import NodeShare
from infra.record.payloads.base import Count, Payload, PrintedPayload, Text, Whole
from infra.record.payloads.checkpoints import CheckpointUnrecognised, amount
from infra.record.payloads.outputs import BakeOutput
from infra.spec.notify import Change
from trainer.contract.job import Name


class FileSystemLost(Payload, kind="file-system.lost", notice=Change.FAILED):
    id: str
    word: str
    """FSx's."""
    copied: Whole = -1
    """Newest step with a copy in S3, -1 for none."""
    repair: bool
    """The driver begins to make it again."""
    why: str
    """It does not; or what that costs."""

    def sentence(self) -> str:
        consequence = "made again, since" if self.repair else "not made again by itself:"
        return f"the file system {self.id} {self.word}; it is {consequence} {self.why}"


class FileSystemReplaced(Payload, kind="file-system.replaced"):
    id: str = ""
    """Of the new one; empty in records that are older than this field."""

    def sentence(self) -> str:
        return "a new file system has taken the lost one's place"


class WatchRaised(PrintedPayload, kind="watch", line="watch", needed=("step", "detector")):
    step: Count | None = None
    detector: Name | None = None
    value: float | Name | None = None
    threshold: float | Name | None = None
    action: Name | None = None
    text: Text | None = None
    did: Text | None = None
    onset: Count | None = None
    ranks: Annotated[list[Count], Field(max_length=2**16)] | None = None

    @property
    def is_slow(self) -> bool:
        """True if no step stands out: the training itself goes wrong, and people are told."""
        return self.detector in ("drift", "divergence")

    def sentence(self) -> str:
        return f"the watch, step {self.step}, {self.detector}: {self.text}; {self.did}"


class Held(Payload, kind="held", notice=Change.HELD, watched=True):
    attempt: Whole | None = None
    failure: str | None = None
    cause: str | None = None
    log: tuple[str, ...] = ()
    until: str | None = None
    usd_per_hour: float | None = None

    def sentence(self) -> str:
        return f"held until {self.until} at {self.usd_per_hour} USD/h: {self.cause}"


class Relaunched(Payload, kind="relaunched", watched=True):
    version: Whole
    """Of the spec that is in force now."""
    committed_step: Whole = -1
    diff: tuple[dict[str, Any], ...] = ()
    """`field`, `old`, `new`."""
    digest: str | None = None
    who: str | None = None
    bake: BakeOutput | None = None
    """Outputs of a new bake stage."""

    def sentence(self) -> str:
        fields = ", ".join(f"{part['field']} {part['old']} -> {part['new']}" for part in self.diff) or "code only"
        begin = max(self.committed_step, 0)
        return f"relaunched by {self.who} from step {begin}, spec {self.version}: {fields}"


class TrainingFinished(Payload, kind="training.finished", notice=Change.FINISHED):
    outcome: str
    why: str | None = None
    step: Whole | None = None
    committed_step: Whole | None = None
    unrecognised: CheckpointUnrecognised | None = None
    """What the job left; None: nobody could look."""

    def sentence(self) -> str:
        return f"training {self.outcome}: {self.why}"


class ArchiveBegun(NodeShare, kind="archive.begun", watched=True):
    group: str | None = None
    released: Whole | None = None
    """Nodes that are given back; None: the nodes are asked for."""

    def sentence(self) -> str:
        nodes = plural(self.nodes, "node")
        if self.released is not None:
            return f"the archive runs on {nodes} of {self.group}: the others are given back"
        return f"the archive asks {self.group} for {nodes}"


class ArchiveVerified(Payload, kind="archive.verified", notice=Change.ARCHIVED):
    manifest: str | None = None
    """Its address in S3."""
    step: Whole
    identity: str = ""
    """Of the campaign; empty in archives that are older than identities."""
    accounts_for: Whole | None = None
    """Newest step that is archived, or was refused."""
    objects: Whole | None = None
    bytes: Whole = 0
    proof: str = "recorded in training"
    recorded_evaluation_loss: float | None = None
    reference_evaluation_loss: float | None = None
    """The loss that the restored model had to equal; earlier versions wrote the recorded one alone."""
    restored_evaluation_loss: float | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)
    """By the job's own evaluation."""
    export_metrics: dict[str, Any] = Field(default_factory=dict)
    """The same of its export."""
    tolerance: float | None = None
    """Largest relative difference that the proof allowed."""
    export: str | None = None
    """Folder of the export below the campaign's prefix."""
    refused: tuple[Any, ...] = ()
    """Newer checkpoints that were not sound, each with the reason."""
    copies_left: Any = None
    """Interval copies that could not be removed."""

    @property
    def wanted_loss(self) -> float | None:
        has_reference = "reference_evaluation_loss" in self.model_fields_set
        return self.reference_evaluation_loss if has_reference else self.recorded_evaluation_loss

    def sentence(self) -> str:
        return f"step {self.step} archived: {self.objects} objects, {size(self.bytes)} read back"


class ArchiveUnproven(Payload, kind="archive.unproven", notice=Change.ARCHIVED):
    """Unrecognised content is copied as it is, with digests, each object read back."""

    prefix: str | None = None
    """An address in S3."""
    files: Whole = 0
    bytes: Whole = 0
    why: str | None = None
    fits: str = ""

    def sentence(self) -> str:
        place = f"in S3 as they are, with digests: {self.prefix}"
        return f"{amount(self.files, self.bytes)} that are no proven checkpoint are {place}; {self.why}"


class ArchiveFailed(Payload, kind="archive.failed", notice=Change.FAILED):
    error: str | None = None
    step: Whole | None = None
    """It is archived byte for byte, but not proven."""
    part: str | None = None
    """What has failed; None: the job's own evaluation."""
