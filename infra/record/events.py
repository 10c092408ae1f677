"""The events of a campaign and the state that they fold into. Pure: no S3, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from infra.errors import first_line
from infra.record.kinds import Kind as Kind
from infra.record.kinds import Stage as Stage

SHARES = (Kind.PILOT_BEGUN, Kind.ARCHIVE_BEGUN, Kind.NODES_COUNTED)
_BEFORE_TRAINING = (Stage.CHECK, Stage.PLAN, Stage.BAKE, Stage.PROVISION, Stage.PREFLIGHT, Stage.LAUNCH)


class _Stored(BaseModel):
    """The fields that an event of any version has."""

    at: AwareDatetime
    writer: str
    sequence: int
    kind: str
    data: dict[str, Any] = {}


class Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    at: datetime
    writer: str
    sequence: int
    kind: Kind
    data: dict[str, Any] = {}


_KIND = re.compile(r"[a-z]+(-[a-z]+)*(\.[a-z]+(-[a-z]+)*)?")


def stored(body: bytes) -> Event | None:
    """Return a stored event; None for a kind that only a later version writes, as an operator's newer clone may while
    an older steward runs: kinds that change a state need a new steward anyway. Raises `ValueError` for anything else.
    """
    content = _Stored.model_validate_json(body)
    if content.kind not in set(Kind) and _KIND.fullmatch(content.kind):
        return None
    event = Event.model_validate_json(body)
    _refuse_misfit(event)
    return event


def unreadable(key: str, error: Exception, at: datetime) -> Event:
    """Return what stands for an event object that cannot be read. `at`: the time at which it was written."""
    _, writer, name = key.rsplit("/", 2)
    number = name.removesuffix(".json")
    sequence = int(number) if number.isascii() and number.isdigit() else 0
    data = {"key": key, "why": first_line(error)}
    return Event(at=at, writer=writer, sequence=sequence, kind=Kind.UNREADABLE, data=data)


class CampaignState(BaseModel):
    model_config = ConfigDict(frozen=True)

    started_at: datetime | None = None
    begun_with: Stage | None = None
    """First stage in the record. If the campaign cannot have begun with it, the beginning of the record is lost."""
    finished_stages: dict[Stage, dict[str, Any]] = {}
    """Stage -> its outputs, for stages that finished and did not start again since."""
    running_stage: Stage | None = None
    attempts: tuple[dict[str, Any], ...] = ()
    """One per launch: attempt and committed_step at launch; once it trains its pods' node ranks; after its end also
    failure, detail, step."""
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
    fetched: tuple[int, int] | None = None
    """(attempt, step) of the last copy that came back from S3: what was committed before is lost beyond that step."""
    lost: dict[str, Any] | None = None
    """The data of FILE_SYSTEM_LOST until the file system is replaced."""
    replacements: int = 0
    """Times that a driver of its own accord began to make a lost file system again."""
    repairs: tuple[datetime, ...] = ()
    hold: dict[str, Any] | None = None
    """The data of HELD, and `since`, while the warm cluster waits for a relaunch."""
    version: int = 0
    """Version of spec and steward configuration in force; 0 is `spec.json`, later ones are `specs/<n>.json`."""
    judged: int = 0
    """Newest attempt at the last relaunch; failures up to it are not counted."""
    gpu_nodes_up: bool = False
    """True from preflight's request until the group is at zero, according to the record."""
    pilot_proved: str = ""
    """Digest of what the newest pilot proved: images and expectation."""
    launch_budget: tuple[AwareDatetime, Decimal] | None = None
    """(time, USD of the whole bill) by which training must run; None again once it runs."""
    archives_on: tuple[int, int] | None = None
    """(nodes in use, nodes of the spec) while the archive runs on some of the gang's nodes."""
    outcome: str | None = None
    committed_at_finish: int | None = None
    """Newest checkpoint on the shared tier when training ended; -1: nothing to archive."""
    unrecognised: dict[str, Any] | None = None
    """What the job left that is no known checkpoint (TRAINING_FINISHED); None: nobody could look."""
    unproven: dict[str, Any] | None = None
    """The data of ARCHIVE_UNPROVEN while no failure follows it: what is unrecognised is safe in S3, as it is."""
    closed: bool = False
    """The steward is done: training is over, its archive is verified or has failed, and GPU nodes are at zero."""
    archive: dict[str, Any] | None = None
    detached: datetime | None = None
    """Since then the campaign needs no driver: one left on purpose, or died and the closer began to end it. None again
    once somebody drives it by `run`."""
    unreadable: int = 0
    """Event objects that cannot be read: each may have been anything, a launch or a commit too."""
    doubted: bool = False
    """One of them may have come after the verified archive: what it began would not be archived."""
    abandoned: bool = False
    """A person gave up what is not archived: teardown and later sweeps may delete it."""
    certificate: dict[str, Any] | None = None

    @property
    def newest_committed(self) -> int:
        """Step of the newest recorded checkpoint on the shared tier; -1: none is known."""
        if self.committed_at_finish is not None:
            return self.committed_at_finish
        since, least = self.fetched or (0, -1)
        return max((_committed(attempt) for attempt in self.attempts if attempt["attempt"] >= since), default=least)

    def node_rank(self, attempt: int, index: int) -> int:
        """Return the node rank of a pod by its index: the same, until the attempt trains in another order."""
        told = next((one for one in self.attempts if one["attempt"] == attempt), {}).get("node_ranks", ())
        return index if index >= len(told) or told[index] is None else int(told[index])

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
        if any(_committed(attempt) >= 0 for attempt in self.attempts):
            return False
        empty = self.unrecognised is not None and self.unrecognised.get("files") == 0
        return empty or not any(attempt.get("began", True) for attempt in self.attempts)

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
        trained = any(attempt.get("began", True) for attempt in self.attempts)
        return self.ended and trained and self.archive is None and not self.abandoned

    @property
    def over(self) -> bool:
        """True if nothing is left to do: it is torn down, certified as clean, and reported."""
        return {Stage.TEARDOWN, Stage.CERTIFY, Stage.REPORT} <= self.finished_stages.keys()

    @property
    def ended(self) -> bool:
        return Stage.REPORT in self.finished_stages


def _committed(attempt: dict[str, Any]) -> int:
    return int(attempt.get("committed_at_end", attempt.get("committed_step", -1)))


def ordered(events: Iterable[Event]) -> tuple[Event, ...]:
    """Order events of all writers by time (ties: writer, sequence), but keep each writer's own sequence.

    If a writer's clock is set back, its later events are dated to its latest time until the clock has caught up.
    """
    latest: dict[str, datetime] = {}
    dated = []
    for event in sorted(events, key=lambda e: (e.writer, e.sequence)):
        at = latest[event.writer] = max(event.at, latest.get(event.writer, event.at))
        dated.append(event if event.at == at else event.model_copy(update={"at": at}))
    return tuple(sorted(dated, key=lambda e: (e.at, e.writer, e.sequence)))


def fold(events: Iterable[Event]) -> CampaignState:
    """Return where a campaign stands. Kinds without a case change no state: report and steward read them."""
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
        case Kind.LAUNCH_BUDGET:
            change = {"launch_budget": (datetime.fromisoformat(data["until"]), Decimal(data["usd"]))}
        case Kind.PILOT_PROVEN:
            change = {"pilot_proved": data["digest"]}
        case Kind.ATTEMPT_LAUNCHED:
            # The new attempt's work is neither abandoned nor archived.
            launched = {**data, "launched_at": event.at}
            change = {"attempts": (*state.attempts, launched), "abandoned": False, "archive": None, "unproven": None}
        case Kind.ATTEMPT_RUNNING:
            ordered = {"node_ranks": data.get("node_ranks", ())}
            change = {"ran": True, "attempts": _told_of(state, data["attempt"], ordered), "launch_budget": None}
        case Kind.ATTEMPT_RESTARTED_IN_PLACE:
            change = {"restarted_in_place": state.restarted_in_place + 1}
        case Kind.ATTEMPT_ENDED:
            change = {"attempts": _told_of(state, data["attempt"], {**data, "ended_at": event.at})}
        case Kind.CHECKPOINT_COPIED:
            change = {"copied": data["step"], "copy_tried_at": event.at}
        case Kind.CHECKPOINT_COPY_FAILED:
            change = {"copy_tried_at": event.at}
        case Kind.CHECKPOINT_FETCHED:
            change = {"copied": data["step"], "fetched": (data["attempt"], data["step"])}
        case Kind.FILE_SYSTEM_LOST:
            change = {"lost": data, "replacements": state.replacements + bool(data["repair"])}
        case Kind.FILE_SYSTEM_REPLACED:
            change = {"lost": None}
        case Kind.NODE_QUARANTINED:
            change = {"repairs": (*state.repairs, event.at)}
        case Kind.TRAINING_FINISHED:
            change = {"outcome": data["outcome"], "hold": None, "committed_at_finish": data.get("committed_step")}
            change["unrecognised"] = data.get("unrecognised")
        case Kind.HELD:
            change = {"hold": {**data, "since": event.at}}
        case Kind.RELAUNCHED:
            change = _relaunched(state, data)
        case Kind.NODES_AT_ZERO:
            change = {"gpu_nodes_up": False, "closed": state.outcome is not None, "archives_on": None}
            if state.outcome is None:
                # The nodes were given back before training ended; their successors have not passed preflight.
                kept = {k: v for k, v in state.finished_stages.items() if k != Stage.PREFLIGHT}
                change |= {"finished_stages": kept, "bake_again": not state.ran}
        case Kind.ARCHIVE_BEGUN:
            change = {"closed": False, "gpu_nodes_up": True, "archives_on": (data["nodes"], data["of"])}
        case Kind.ARCHIVE_VERIFIED:
            change = {"archive": data, "doubted": False}
        case Kind.ARCHIVE_UNPROVEN:
            change = {"unproven": data, "doubted": False}
        case Kind.ARCHIVE_FAILED:
            change = {"unproven": None}
        case Kind.DETACHED | Kind.CLOSING:
            change = {"detached": state.detached or event.at}
        case Kind.ATTACHED:
            change = {"detached": None}
        case Kind.ABANDONED:
            change = {"abandoned": True}
        case Kind.UNREADABLE:
            # It may have been a launch, whose work is neither abandoned nor archived.
            change = {"unreadable": state.unreadable + 1, "doubted": True, "abandoned": False}
        case Kind.CERTIFIED:
            change = {"certificate": data}
    return state.model_copy(update=change)


def share_of(data: dict[str, Any]) -> Fraction:
    """Return the share of the spec's GPU nodes that bills after an event of the kinds `SHARES`."""
    return Fraction(int(data["nodes"]), int(data["of"]))


class _AttemptFacts(BaseModel):
    """The fields of an attempt that states and limits are computed from."""

    model_config = ConfigDict(strict=True)

    attempt: int
    committed_step: int = -1
    committed_at_end: int = -1
    failure: str | None = None
    node_ranks: tuple[int | None, ...] = Field(default=(), strict=False)


def _refuse_misfit(event: Event) -> None:
    """Raise `ValueError` if the data do not fit the kind: folding them would end whoever reads the record."""
    blank = CampaignState(attempts=({"attempt": event.data.get("attempt", 1)},))
    try:
        state = CampaignState.model_validate(_apply(blank, event).model_dump(warnings=False))
        for attempt in state.attempts:
            _AttemptFacts.model_validate(attempt)
        if state.archive is not None:
            int(state.archive["step"])
        if event.kind in SHARES:
            share_of(event.data)
    except (KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"the data do not fit {event.kind}: {type(error).__name__} {error}") from error


def _told_of(state: CampaignState, attempt: int, more: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the attempts, with more known of one of them."""
    return tuple({**one, **more} if one["attempt"] == attempt else one for one in state.attempts)


def _relaunched(state: CampaignState, data: dict[str, Any]) -> dict[str, Any]:
    """Return the change by a relaunch: it ends the hold, resets the failure counts and sets newer spec and image."""
    newest = max((int(attempt["attempt"]) for attempt in state.attempts), default=0)
    change: dict[str, Any] = {"hold": None, "version": data["version"], "judged": newest}
    if "bake" in data:
        change["finished_stages"] = state.finished_stages | {Stage.BAKE: data["bake"]}
    return change
