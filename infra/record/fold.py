"""What each event changes in the state of its campaign. Pure: no S3, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from infra.record.payloads import Payload, attempts, checkpoints, stages, training
from infra.record.payloads.attempts import AttemptRecord
from infra.record.payloads.outputs import StageOutput
from infra.record.stage import Stage
from infra.record.state import CampaignState


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
            return {"running_stage": None, "finished_stages": state.finished_stages | {stage: outputs}, **bake_flag}
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
        case training.FileSystemReplaced():
            return {"lost": None}
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
