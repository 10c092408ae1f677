"""Where a campaign stands is a fold over its events. Pure: no S3, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Stage(StrEnum):
    """The stages of a campaign, in order."""

    CHECK = "check"
    PLAN = "plan"
    BAKE = "bake"
    PROVISION = "provision"
    PREFLIGHT = "preflight"
    LAUNCH = "launch"
    SUPERVISE = "supervise"
    ARCHIVE = "archive"
    TEARDOWN = "teardown"
    CERTIFY = "certify"
    REPORT = "report"


_BEFORE_TRAINING = (Stage.CHECK, Stage.PLAN, Stage.BAKE, Stage.PROVISION, Stage.PREFLIGHT, Stage.LAUNCH)


class Kind(StrEnum):
    """What an event says; the keys of its data stand beside it."""

    STAGE_STARTED = "stage.started"  # stage
    STAGE_FINISHED = "stage.finished"  # stage, seconds, outputs
    STAGE_FAILED = "stage.failed"  # stage, error, cut_off (no GPU node was given back)
    DRIVER_TOOK_OVER = "driver.took-over"  # holder, previous
    NODE_VERDICT = "node.verdict"  # node, instance, fit, probes
    NODE_QUARANTINED = "node.quarantined"  # node, instance, reason
    ATTEMPT_LAUNCHED = "attempt.launched"  # attempt, jobset, committed_step
    ATTEMPT_RUNNING = "attempt.running"  # attempt, nodes
    ATTEMPT_ENDED = (
        "attempt.ended"  # attempt, failure, detail, step, committed_step, dead_nodes, first_failed, instances
    )
    CHECKPOINT_REFUSED = "checkpoint.refused"  # tier, rank, file, step, wanted, seen
    CHECKPOINT_RESTORED = "checkpoint.restored"  # attempt, step, tier
    DECISION = "decision"  # action, why
    HELD = "held"  # attempt, failure, cause, log, until, usd_per_hour
    RELAUNCHED = "relaunched"  # version, diff, digest, who, committed_step, bake
    TRAINING_FINISHED = "training.finished"  # outcome, why, step, committed_step
    ARCHIVE_VERIFIED = "archive.verified"  # manifest, step, evaluation_loss, objects, bytes
    ARCHIVE_BEGUN = "archive.begun"  # group, nodes (that bill from here), of (the spec's), released (None: asked for)
    ARCHIVE_FAILED = "archive.failed"  # error
    NODES_AT_ZERO = "nodes.at-zero"  # group
    ABANDONED = "abandoned"  # before a teardown removes anything although no archive is verified
    CERTIFIED = "certified"  # clean, found, could_not_look


class Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    at: datetime
    writer: str
    sequence: int
    kind: Kind
    data: dict[str, Any] = {}


class CampaignState(BaseModel):
    """What the events add up to."""

    model_config = ConfigDict(frozen=True)

    started_at: datetime | None = None
    begun_with: Stage | None = None
    """The first stage that the record tells of: of one that begins with its end, the beginning is lost."""
    finished_stages: dict[Stage, dict[str, Any]] = {}
    """Stage -> its outputs, for stages that finished and were not begun anew since."""
    running_stage: Stage | None = None
    attempts: tuple[dict[str, Any], ...] = ()
    """One per launch: attempt, committed_step at launch, and after its end failure, detail, step."""
    ran: bool = False
    """An attempt has come to train: the image of the bake made what is on the shared tier."""
    bake_again: bool = False
    """The launch failed and no attempt ever ran: the code may be at fault, and mended since."""
    repairs: tuple[datetime, ...] = ()
    hold: dict[str, Any] | None = None
    """While the warm cluster waits for a relaunch: the data of HELD, and `since`."""
    version: int = 0
    """Of spec and steward configuration in force; 0 is `spec.json`, later ones are `specs/<n>.json`."""
    judged: int = 0
    """Newest attempt when a person last relaunched: failures up to it count no more."""
    gpu_nodes_up: bool = False
    """As far as the record tells: asked for by preflight, not yet at zero."""
    archives_on: tuple[int, int] | None = None
    """While the archive runs on some of the gang's nodes: (these, the spec's)."""
    outcome: str | None = None
    committed_at_finish: int | None = None
    """Newest checkpoint on the shared tier when training ended; -1: there is nothing to archive."""
    closed: bool = False
    """The steward has done all: training over, archived or said why not, GPU nodes at zero."""
    archive: dict[str, Any] | None = None
    abandoned: bool = False
    """A person gave up what is not archived: the teardown, and what sweeps after it, may lose it."""
    certificate: dict[str, Any] | None = None

    @property
    def newest_committed(self) -> int:
        """Step of the newest checkpoint on the shared tier, as last recorded; -1: none is known."""
        if self.committed_at_finish is not None:
            return self.committed_at_finish
        return max((_committed(attempt) for attempt in self.attempts), default=-1)

    @property
    def never_committed(self) -> bool:
        """Whether the record proves that there never was a checkpoint: nothing launched, or all ended without one."""
        ended = self.closed and self.committed_at_finish == -1
        none = all(_committed(attempt) == -1 for attempt in self.attempts)
        return not self.tells_nothing and none and (ended or not self.attempts)

    @property
    def tells_nothing(self) -> bool:
        """Whether the record cannot say if training ever began: it is empty, or its beginning is lost."""
        return not self.attempts and self.begun_with not in _BEFORE_TRAINING

    @property
    def ended(self) -> bool:
        return Stage.REPORT in self.finished_stages


def _committed(attempt: dict[str, Any]) -> int:
    return int(attempt.get("committed_at_end", attempt.get("committed_step", -1)))


def ordered(events: Iterable[Event]) -> tuple[Event, ...]:
    """By time over all writers (ties: writer, sequence), but never against a writer's own sequence.

    A clock that is set back makes later events of its writer look older: they count as of its latest time until then.
    """
    latest: dict[str, datetime] = {}
    keyed = []
    for event in sorted(events, key=lambda e: (e.writer, e.sequence)):
        latest[event.writer] = max(event.at, latest.get(event.writer, event.at))
        keyed.append(((latest[event.writer], event.writer, event.sequence), event))
    return tuple(event for _, event in sorted(keyed, key=lambda pair: pair[0]))


def fold(events: Iterable[Event]) -> CampaignState:
    """The state after all events, in their order."""
    state = CampaignState()
    for event in ordered(events):
        state = _apply(state, event)
    return state


def _apply(state: CampaignState, event: Event) -> CampaignState:
    data, change = event.data, {}
    match event.kind:
        case Kind.STAGE_STARTED:
            stage = Stage(data["stage"])
            kept = {k: v for k, v in state.finished_stages.items() if k != stage}
            change = {"running_stage": stage, "finished_stages": kept, "started_at": state.started_at or event.at}
            change["begun_with"] = state.begun_with or stage
            if stage is Stage.PREFLIGHT:
                change["gpu_nodes_up"] = True
        case Kind.STAGE_FINISHED:
            stage = Stage(data["stage"])
            done = state.finished_stages | {stage: data.get("outputs", {})}
            change = {"running_stage": None, "finished_stages": done}
            if stage is Stage.BAKE:
                change["bake_again"] = False
        case Kind.STAGE_FAILED:
            change = {"running_stage": None}
            if data["stage"] == Stage.PREFLIGHT and not data.get("cut_off"):
                change["gpu_nodes_up"] = False
        case Kind.ATTEMPT_LAUNCHED:
            # What is trained from now on, nobody has given up, and no archive holds.
            launched = {**data, "launched_at": event.at}
            change = {"attempts": (*state.attempts, launched), "abandoned": False, "archive": None}
        case Kind.ATTEMPT_RUNNING:
            change = {"ran": True}
        case Kind.ATTEMPT_ENDED:
            ended = tuple(
                {**a, **data, "ended_at": event.at} if a["attempt"] == data["attempt"] else a for a in state.attempts
            )
            change = {"attempts": ended}
        case Kind.NODE_QUARANTINED:
            change = {"repairs": (*state.repairs, event.at)}
        case Kind.TRAINING_FINISHED:
            change = {"outcome": data["outcome"], "hold": None, "committed_at_finish": data.get("committed_step")}
        case Kind.HELD:
            change = {"hold": {**data, "since": event.at}}
        case Kind.RELAUNCHED:
            change = _relaunched(state, data)
        case Kind.NODES_AT_ZERO:
            change = {"gpu_nodes_up": False, "closed": state.outcome is not None, "archives_on": None}
            if state.outcome is None:
                # Given back before training had ended: those that come instead have proven nothing yet.
                kept = {k: v for k, v in state.finished_stages.items() if k != Stage.PREFLIGHT}
                change |= {"finished_stages": kept, "bake_again": not state.ran}
        case Kind.ARCHIVE_BEGUN:
            change = {"closed": False, "gpu_nodes_up": True, "archives_on": (data["nodes"], data["of"])}
        case Kind.ARCHIVE_VERIFIED:
            change = {"archive": data}
        case Kind.ABANDONED:
            change = {"abandoned": True}
        case Kind.CERTIFIED:
            change = {"certificate": data}
    return state.model_copy(update=change)


def _relaunched(state: CampaignState, data: dict[str, Any]) -> dict[str, Any]:
    """A person has judged: the hold ends, failures so far count no more, spec and image are the newer ones."""
    newest = max((int(attempt["attempt"]) for attempt in state.attempts), default=0)
    change: dict[str, Any] = {"hold": None, "version": data["version"], "judged": newest}
    if "bake" in data:
        change["finished_stages"] = state.finished_stages | {Stage.BAKE: data["bake"]}
    return change
