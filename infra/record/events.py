"""The events of a campaign, and their fold into its state. Pure: no S3, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, model_validator

from infra.console.visible import visible
from infra.errors import first_line
from infra.record.payloads import PAYLOADS, Payload, attempts, checkpoints, payload_of, stages, training
from infra.record.payloads.attempts import AttemptRecord
from infra.record.payloads.outputs import ProvisionOutput, StageOutput
from infra.record.payloads.outputs import Stage as Stage
from infra.record.payloads.stages import UnreadableRecord
from infra.record.state import CampaignState as CampaignState
from trainer.contract.frozen import Frozen


class _Stored(BaseModel):
    """The fields that an event of any version has."""

    at: AwareDatetime
    writer: str
    sequence: int
    kind: str
    data: dict[str, Any] = {}


def _kind_in_use(kind: str) -> str:
    if kind not in PAYLOADS:
        raise ValueError(f"no kind of event: {kind}")
    return kind


class Event(Frozen):
    at: datetime
    writer: str
    sequence: int
    kind: Annotated[str, AfterValidator(_kind_in_use)]
    data: dict[str, Any] = {}

    @classmethod
    def of(cls, payload: Payload, time: datetime, writer: str, sequence: int) -> Event:
        return cls(at=time, writer=writer, sequence=sequence, kind=payload.kind, data=payload.data())

    @cached_property
    def payload(self) -> Payload:
        """What the event says."""
        return payload_of(self.kind, self.data)

    @model_validator(mode="after")
    def _fits(self) -> Event:
        """Raise `ValueError` where the data do not fit the kind."""
        payload_of(self.kind, self.data)
        return self

    def sentence(self) -> str:
        """Return the event in one line; control characters of foreign text are made visible."""
        return visible(self.payload.sentence(), lines=False)


_KIND = re.compile(r"[a-z]+(-[a-z]+)*(\.[a-z]+(-[a-z]+)*)?")


def stored(body: bytes) -> Event | None:
    """Return a stored event; None for a kind that only a later version writes, as an operator's newer clone may while
    an older steward runs: kinds that change a state need a new steward anyway. Raises `ValueError` for anything else.
    """
    content = _Stored.model_validate_json(body)
    if content.kind not in PAYLOADS and _KIND.fullmatch(content.kind):
        return None
    event = Event.model_validate_json(body)
    next_state(CampaignState(), event.payload, event.at)  # folding a misfit would end readers
    return event


def unreadable(key: str, error: Exception, written_at: datetime) -> Event:
    """Return what stands for an event object that cannot be read. `written_at`: the time of its write."""
    _, writer, name = key.rsplit("/", 2)
    number = name.removesuffix(".json")
    sequence = int(number) if number.isascii() and number.isdigit() else 0
    return Event.of(UnreadableRecord(key=key, why=first_line(error)), written_at, writer, sequence)


def ordered(events: Iterable[Event]) -> tuple[Event, ...]:
    """Order events of all writers by time (ties: writer, sequence), but keep each writer's own sequence.

    If a writer's clock is set back, its later events are dated to its latest time until the clock has caught up.
    """
    latest: dict[str, datetime] = {}
    events_in_order = []
    for event in sorted(events, key=lambda e: (e.writer, e.sequence)):
        time = latest[event.writer] = max(event.at, latest.get(event.writer, event.at))
        events_in_order.append(event if event.at == time else event.model_copy(update={"at": time}))
    return tuple(sorted(events_in_order, key=lambda e: (e.at, e.writer, e.sequence)))


def fold(events: Iterable[Event]) -> CampaignState:
    """Return where a campaign stands."""
    state = CampaignState()
    for event in ordered(events):
        state = next_state(state, event.payload, event.at)
    return state


def next_state(state: CampaignState, payload: Payload, time: datetime) -> CampaignState:
    """Return the state after an event that happened at `time`."""
    changes = _of_stage(state, payload, time) or _of_attempt(state, payload, time) or _of_training(state, payload, time)
    return state.model_copy(update=dict(changes))


def _of_stage(state: CampaignState, payload: Payload, time: datetime) -> Mapping[str, Any]:
    match payload:
        case stages.StageStarted(stage=stage):
            gpu_flag = {"gpu_nodes_up": True} if stage is Stage.PREFLIGHT else {}
            beginning = {"started_at": state.started_at or time, "begun_with": state.begun_with or stage}
            return {"running_stage": stage, "finished_stages": _drop_stage(state, stage), **beginning, **gpu_flag}
        case stages.StageFinished(stage=stage, outputs=outputs):
            bake_flag = {"bake_again": False} if stage is Stage.BAKE else {}
            data_flag = {"data_begun_at": None} if stage is Stage.PROVISION else {}
            finished_stages = state.finished_stages | {stage: outputs}
            end = {"running_stage": None, "finished_stages": finished_stages, **bake_flag, **data_flag}
            if isinstance(outputs, ProvisionOutput):
                return {**end, "file_system": outputs.outputs.get("file_system_id")}
            return end
        case stages.DataBegun() | stages.DataEnded():
            return {"data_begun_at": time if isinstance(payload, stages.DataBegun) else None}
        case stages.StageFailed(gave_nodes_back=gave_back):
            return {"running_stage": None, **({"gpu_nodes_up": False} if gave_back else {})}
        case stages.Detached() | stages.Closing():
            return {"detached": state.detached or time}
        case stages.Attached():
            return {"detached": None}
        case stages.Abandoned():
            return {"abandoned": True}
        case stages.Certified():
            return {"certificate": payload}
        case stages.UnreadableRecord():
            # It may have been a launch, whose work is neither abandoned nor archived.
            return {"unreadable": state.unreadable + 1, "doubted": True, "abandoned": False}
    return {}


def _of_attempt(state: CampaignState, payload: Payload, time: datetime) -> Mapping[str, Any]:
    match payload:
        case attempts.NodeQuarantined():
            return {"repairs": (*state.repairs, time)}
        case attempts.NodeRebooted(instance=instance, until=until, refusal=refusal):
            repairs = state.repairs if refusal else (*state.repairs, time)
            return {"repairs": repairs, "reboots": {**state.reboots, instance: until}}
        case attempts.LaunchBudget():
            return {"launch_budget": payload}
        case attempts.PilotProven(digest=digest):
            return {"pilot_proved": digest}
        case attempts.NodesAtZero():
            end = {"gpu_nodes_up": False, "closed": state.outcome is not None, "archives_on": None}
            if state.outcome is not None:
                return end
            # The nodes were given back before training ended; their successors have not passed preflight.
            return {**end, "finished_stages": _drop_stage(state, Stage.PREFLIGHT), "bake_again": not state.ran}
        case attempts.AttemptLaunched():
            attempts_now = (*state.attempts, AttemptRecord(launched=payload, launched_at=time))
            # The new attempt's work is neither abandoned nor archived.
            return {"attempts": attempts_now, "abandoned": False, "archive": None, "unproven": None}
        case attempts.AttemptRunning(attempt=number, node_ranks=ranks):
            return {"ran": True, "attempts": _update_attempt(state, number, node_ranks=ranks), "launch_budget": None}
        case attempts.AttemptRestartedInPlace():
            return {"restarted_in_place": state.restarted_in_place + 1}
        case attempts.AttemptEnded(attempt=number):
            return {"attempts": _update_attempt(state, number, ended=payload, ended_at=time)}
        case checkpoints.CheckpointCopied(step=step):
            return {"copied": step, "copy_tried_at": time}
        case checkpoints.CheckpointCopyFailed():
            return {"copy_tried_at": time}
        case checkpoints.CheckpointFetched(step=step):
            return {"copied": step, "fetched": payload}
    return {}


def _of_training(state: CampaignState, payload: Payload, time: datetime) -> Mapping[str, Any]:
    match payload:
        case training.FileSystemLost(repair=repair):
            return {"lost": payload, "replacements": state.replacements + repair}
        case training.FileSystemReplaced(id=id):
            return {"lost": None, "file_system": id or None}
        case training.Held():
            return {"hold": payload, "held_since": time}
        case training.Relaunched(version=version, bake=bake):
            bake_outputs = {} if bake is None else {"finished_stages": state.finished_stages | {Stage.BAKE: bake}}
            newest = max((attempt.number for attempt in state.attempts), default=0)
            return {"hold": None, "held_since": None, "version": version, "judged": newest, **bake_outputs}
        case training.TrainingFinished(outcome=outcome, committed_step=step, unrecognised=left):
            end = {"outcome": outcome, "hold": None, "held_since": None}
            return {**end, "committed_at_finish": step, "unrecognised": left}
        case training.ArchiveBegun():
            return {"closed": False, "gpu_nodes_up": True, "archives_on": payload}
        case training.ArchiveVerified():
            return {"archive": payload, "doubted": False}
        case training.ArchiveUnproven():
            return {"unproven": payload, "doubted": False}
        case training.ArchiveFailed():
            return {"unproven": None}
    return {}


def _drop_stage(state: CampaignState, stage: Stage) -> dict[Stage, StageOutput]:
    return {name: outputs for name, outputs in state.finished_stages.items() if name != stage}


def _update_attempt(state: CampaignState, attempt: int, **facts: Any) -> tuple[AttemptRecord, ...]:
    """Return the attempts, with more known of one of them."""
    return tuple(record.model_copy(update=facts) if record.number == attempt else record for record in state.attempts)
