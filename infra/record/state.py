"""Where a campaign stands: what its events fold into."""

from __future__ import annotations

from datetime import datetime

from infra.record.payloads.attempts import AttemptRecord, LaunchBudget
from infra.record.payloads.checkpoints import CheckpointFetched, CheckpointUnrecognised
from infra.record.payloads.outputs import Stage, StageOutput
from infra.record.payloads.stages import Certified
from infra.record.payloads.training import ArchiveBegun, ArchiveUnproven, ArchiveVerified, FileSystemLost, Held
from trainer.contract.frozen import Frozen

_BEFORE_TRAINING = (Stage.CHECK, Stage.PLAN, Stage.BAKE, Stage.PROVISION, Stage.PREFLIGHT, Stage.LAUNCH)


class CampaignState(Frozen, extra="ignore"):
    started_at: datetime | None = None
    begun_with: Stage | None = None
    """First stage in the record. If the campaign cannot have begun with it, the beginning of the record is lost."""
    finished_stages: dict[Stage, StageOutput] = {}
    """Stage -> its outputs, for stages that finished and did not start again since."""
    running_stage: Stage | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    restarted_in_place: int = 0
    """Times that an attempt went on in its pods after a process had died."""
    ran: bool = False
    """Some attempt has trained, so a failed launch is not the image's fault."""
    bake_again: bool = False
    """The launch failed and no attempt ever ran: the cause may be a bug in the code, corrected since."""
    copied: int = -1
    """Newest step with an interval copy in S3 that counts: after a fetch, the one that came back."""
    copy_tried_at: datetime | None = None
    """Time of the last copy, or of its failure."""
    fetched: CheckpointFetched | None = None
    """The last copy that came back from S3: what was committed before is lost beyond its step."""
    file_system: str | None = None
    """Id of the shared file system; None where there is none, or nobody wrote it down."""
    lost: FileSystemLost | None = None
    """Set until the file system is replaced."""
    replacements: int = 0
    """Times that a driver of its own accord began to make a lost file system again."""
    repairs: tuple[datetime, ...] = ()
    reboots: dict[str, datetime] = {}
    """Instance that was rebooted -> until when its node is waited for."""
    hold: Held | None = None
    """Set while the warm cluster waits for a relaunch."""
    held_since: datetime | None = None
    version: int = 0
    """Version of spec and steward configuration in force; 0 is `spec.json`, later ones are `specs/<n>.json`."""
    judged: int = 0
    """Newest attempt at the last relaunch; failures up to it are not counted."""
    gpu_nodes_up: bool = False
    """True from preflight's request until the group is at zero, according to the record."""
    pilot_proved: str = ""
    """Digest of what the newest pilot proved: images and expectation."""
    data_begun_at: datetime | None = None
    """Set while nodes are up that prepare the data, according to the record."""
    launch_budget: LaunchBudget | None = None
    """Set until training runs."""
    archives_on: ArchiveBegun | None = None
    """Set while the archive runs on some of the gang's nodes."""
    outcome: str | None = None
    committed_at_finish: int | None = None
    """Newest checkpoint on the shared tier when training ended; -1: nothing to archive."""
    unrecognised: CheckpointUnrecognised | None = None
    """What the job left that is no known checkpoint; None: nobody could look."""
    unproven: ArchiveUnproven | None = None
    """Set while no failure follows it: what is unrecognised is safe in S3, as it is."""
    closed: bool = False
    """The steward is done: training is over, its archive is verified or has failed, and GPU nodes are at zero."""
    archive: ArchiveVerified | None = None
    detached: datetime | None = None
    """Since then the campaign needs no driver: one left on purpose, or died and the closer began to end it. None again
    once somebody drives it by `run`."""
    unreadable: int = 0
    """Event objects that cannot be read: each may have been anything, a launch or a commit too."""
    doubted: bool = False
    """One of them may have come after the verified archive: what it began would not be archived."""
    abandoned: bool = False
    """A person gave up what is not archived: teardown and later sweeps may delete it."""
    certificate: Certified | None = None

    @property
    def newest_committed(self) -> int:
        """Step of the newest recorded checkpoint on the shared tier; -1: none is known."""
        if self.committed_at_finish is not None:
            return self.committed_at_finish
        first_attempt, floor = (0, -1) if self.fetched is None else (self.fetched.attempt, self.fetched.step)
        return max((attempt.committed for attempt in self.attempts if attempt.number >= first_attempt), default=floor)

    def node_rank(self, attempt: int, index: int) -> int:
        """Return the node rank of a pod by its index: the same, until the attempt trains in another order."""
        ranks = next((record.node_ranks for record in self.attempts if record.number == attempt), ())
        rank = ranks[index] if index < len(ranks) else None
        return index if rank is None else rank

    @property
    def nothing_to_lose(self) -> bool:
        """True if the record proves that no attempt left anything: nothing launched, or all is over and was nothing."""
        if self.unreadable or self.tells_nothing:
            return False
        return not self.attempts or (self.closed and self.committed_at_finish == -1 and self.left_nothing)

    @property
    def left_nothing(self) -> bool:
        """True if no checkpoint was committed, and the job's folder was seen empty or no attempt began. What nobody
        recognised, or nobody saw, may be all that there is."""
        if any(attempt.committed >= 0 for attempt in self.attempts):
            return False
        empty = self.unrecognised is not None and self.unrecognised.empty
        return empty or not any(attempt.began for attempt in self.attempts)

    @property
    def tells_nothing(self) -> bool:
        """True if the record cannot tell whether training began: it is empty, or its beginning is lost."""
        return not self.attempts and self.begun_with not in _BEFORE_TRAINING

    @property
    def settled(self) -> bool:
        """True if the steward is done and a teardown loses nothing: all is archived, or copied as it is, or there was
        nothing."""
        safe = self.archive is not None or self.copied_as_it_is or self.nothing_to_lose
        return self.closed and not self.doubted and safe

    @property
    def copied_as_it_is(self) -> bool:
        """True if no checkpoint was committed and S3 holds all that may be one, unproven."""
        return self.unproven is not None and self.newest_committed == -1 and self.committed_at_finish == -1

    @property
    def ended_without_golden(self) -> bool:
        """True if it is over, something trained, no checkpoint is proven, and nobody gave that up on purpose."""
        any_began = any(attempt.began for attempt in self.attempts)
        return self.ended and any_began and self.archive is None and not self.abandoned

    @property
    def over(self) -> bool:
        """True if nothing is left to do: it is torn down, certified as clean, and reported."""
        return {Stage.TEARDOWN, Stage.CERTIFY, Stage.REPORT} <= self.finished_stages.keys()

    @property
    def ended(self) -> bool:
        return Stage.REPORT in self.finished_stages
