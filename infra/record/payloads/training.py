"""The training as a whole: its file system, watch, holds and end, and the archive."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from infra.console.words import plural, size
from infra.record.kinds import Kind, Stage
from infra.record.payloads.attempts import NodeShare
from infra.record.payloads.base import Payload, Update, Whole
from infra.record.payloads.checkpoints import amount
from infra.record.state import CampaignState
from infra.spec.notify import Change


class FileSystemLost(Payload):
    kind = Kind.FILE_SYSTEM_LOST
    notice = Change.FAILED

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
        then = "made again, since" if self.repair else "not made again by itself:"
        return f"the file system {self.id} {self.word}; it is {then} {self.why}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"lost": self.data(), "replacements": state.replacements + self.repair}


class FileSystemReplaced(Payload):
    kind = Kind.FILE_SYSTEM_REPLACED

    def sentence(self) -> str:
        return "a new file system has taken the lost one's place"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"lost": None}


class WatchRaised(Payload):
    kind = Kind.WATCH

    attempt: Whole | None = None
    step: Whole | None = None
    detector: str | None = None
    value: Any = None
    threshold: Any = None
    action: str | None = None
    text: str | None = None
    did: str | None = None
    onset: Whole | None = None
    ranks: Any = None

    def sentence(self) -> str:
        return f"the watch, step {self.step}, {self.detector}: {self.text}; {self.did}"


class Held(Payload):
    kind = Kind.HELD
    notice = Change.HELD
    watched = True

    attempt: Whole | None = None
    failure: str | None = None
    cause: str | None = None
    log: tuple[str, ...] = ()
    until: str | None = None
    usd_per_hour: float | None = None

    def sentence(self) -> str:
        return f"held until {self.until} at {self.usd_per_hour} USD/h: {self.cause}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"hold": {**self.data(), "since": at}}


class Relaunched(Payload):
    kind = Kind.RELAUNCHED
    watched = True

    version: Whole
    """Of the spec that is in force now."""
    committed_step: Whole = -1
    diff: tuple[dict[str, Any], ...] = ()
    """`field`, `old`, `new`."""
    digest: str | None = None
    who: str | None = None
    bake: dict[str, Any] | None = None
    """Outputs of a new bake stage."""

    def sentence(self) -> str:
        fields = ", ".join(f"{part['field']} {part['old']} -> {part['new']}" for part in self.diff) or "code only"
        begin = max(self.committed_step, 0)
        return f"relaunched by {self.who} from step {begin}, spec {self.version}: {fields}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        newest = max((int(attempt["attempt"]) for attempt in state.attempts), default=0)
        change: dict[str, Any] = {"hold": None, "version": self.version, "judged": newest}
        if self.bake is not None:
            change["finished_stages"] = state.finished_stages | {Stage.BAKE: self.bake}
        return change


class TrainingFinished(Payload):
    kind = Kind.TRAINING_FINISHED
    notice = Change.FINISHED

    outcome: str
    why: str | None = None
    step: Whole | None = None
    committed_step: Whole | None = None
    unrecognised: dict[str, Any] | None = None
    """As `CheckpointUnrecognised`; None: nobody could look."""

    def sentence(self) -> str:
        return f"training {self.outcome}: {self.why}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        change = {"outcome": self.outcome, "hold": None, "committed_at_finish": self.committed_step}
        return {**change, "unrecognised": self.unrecognised}


class ArchiveBegun(NodeShare):
    kind = Kind.ARCHIVE_BEGUN
    watched = True

    group: str | None = None
    released: Whole | None = None
    """Nodes that are given back; None: the nodes are asked for."""

    def sentence(self) -> str:
        nodes = plural(self.nodes, "node")
        if self.released is not None:
            return f"the archive runs on {nodes} of {self.group}: the others are given back"
        return f"the archive asks {self.group} for {nodes}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"closed": False, "gpu_nodes_up": True, "archives_on": (self.nodes, self.of)}


class ArchiveVerified(Payload):
    kind = Kind.ARCHIVE_VERIFIED
    notice = Change.ARCHIVED

    manifest: str | None = None
    step: Whole
    objects: Whole | None = None
    bytes: Whole = 0

    def sentence(self) -> str:
        return f"step {self.step} archived: {self.objects} objects, {size(self.bytes)} read back"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"archive": self.data(), "doubted": False}


class ArchiveUnproven(Payload):
    """Unrecognised content is copied as it is, with digests, each object read back."""

    kind = Kind.ARCHIVE_UNPROVEN
    notice = Change.ARCHIVED

    prefix: str | None = None
    """An address in S3."""
    files: Whole = 0
    bytes: Whole = 0
    why: str | None = None
    fits: str = ""

    def sentence(self) -> str:
        where = f"in S3 as they are, with digests: {self.prefix}"
        return f"{amount(self.files, self.bytes)} that are no proven checkpoint are {where}; {self.why}"

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"unproven": self.data(), "doubted": False}


class ArchiveFailed(Payload):
    kind = Kind.ARCHIVE_FAILED
    notice = Change.FAILED

    error: str | None = None
    step: Whole | None = None
    """It is archived byte for byte, but not proven."""
    part: str | None = None
    """What has failed; None: the job's own evaluation."""

    def update(self, state: CampaignState, at: datetime) -> Update:
        return {"unproven": None}
