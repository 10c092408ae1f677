"""What each event changes in the state of its campaign. Pure: no S3, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from infra.record.payloads import Payload, attempts, checkpoints, stages, training
from infra.record.payloads.attempts import AttemptRecord
from infra.record.stage import Stage
from infra.record.state import CampaignState


def after(state: CampaignState, payload: Payload, at: datetime) -> CampaignState:
    """Return the state after an event that happened at `at`."""
    changes = _of_stage(state, payload, at) or _of_attempt(state, payload, at) or _of_training(state, payload, at)
    return state.model_copy(update=dict(changes))


def _of_stage(state: CampaignState, payload: Payload, at: datetime) -> Mapping[str, Any]:
    match payload:
        case stages.StageStarted(stage=stage):
            up = {"gpu_nodes_up": True} if stage is Stage.PREFLIGHT else {}
            begun = {"started_at": state.started_at or at, "begun_with": state.begun_with or stage}
            return {"running_stage": stage, "finished_stages": _without(state, stage), **begun, **up}
        case stages.StageFinished(stage=stage, outputs=outputs):
            baked = {"bake_again": False} if stage is Stage.BAKE else {}
            return {"running_stage": None, "finished_stages": state.finished_stages | {stage: outputs}, **baked}
        case stages.StageFailed(gave_nodes_back=gave_back):
            return {"running_stage": None, **({"gpu_nodes_up": False} if gave_back else {})}
        case stages.Detached() | stages.Closing():
            return {"detached": state.detached or at}
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


def _of_attempt(state: CampaignState, payload: Payload, at: datetime) -> Mapping[str, Any]:
    match payload:
        case attempts.NodeQuarantined():
            return {"repairs": (*state.repairs, at)}
        case attempts.LaunchBudget():
            return {"launch_budget": payload}
        case attempts.PilotProven(digest=digest):
            return {"pilot_proved": digest}
        case attempts.NodesAtZero():
            over = {"gpu_nodes_up": False, "closed": state.outcome is not None, "archives_on": None}
            if state.outcome is not None:
                return over
            # The nodes were given back before training ended; their successors have not passed preflight.
            return {**over, "finished_stages": _without(state, Stage.PREFLIGHT), "bake_again": not state.ran}
        case attempts.AttemptLaunched():
            launched = (*state.attempts, AttemptRecord(launched=payload, launched_at=at))
            # The new attempt's work is neither abandoned nor archived.
            return {"attempts": launched, "abandoned": False, "archive": None, "unproven": None}
        case attempts.AttemptRunning(attempt=number, node_ranks=ranks):
            return {"ran": True, "attempts": _with(state, number, node_ranks=ranks), "launch_budget": None}
        case attempts.AttemptRestartedInPlace():
            return {"restarted_in_place": state.restarted_in_place + 1}
        case attempts.AttemptEnded(attempt=number):
            return {"attempts": _with(state, number, ended=payload, ended_at=at)}
        case checkpoints.CheckpointCopied(step=step):
            return {"copied": step, "copy_tried_at": at}
        case checkpoints.CheckpointCopyFailed():
            return {"copy_tried_at": at}
        case checkpoints.CheckpointFetched(step=step):
            return {"copied": step, "fetched": payload}
    return {}


def _of_training(state: CampaignState, payload: Payload, at: datetime) -> Mapping[str, Any]:
    match payload:
        case training.FileSystemLost(repair=repair):
            return {"lost": payload, "replacements": state.replacements + repair}
        case training.FileSystemReplaced():
            return {"lost": None}
        case training.Held():
            return {"hold": payload, "held_since": at}
        case training.Relaunched(version=version, bake=bake):
            baked = {} if bake is None else {"finished_stages": state.finished_stages | {Stage.BAKE: bake}}
            newest = max((attempt.number for attempt in state.attempts), default=0)
            return {"hold": None, "held_since": None, "version": version, "judged": newest, **baked}
        case training.TrainingFinished(outcome=outcome, committed_step=step, unrecognised=left):
            over = {"outcome": outcome, "hold": None, "held_since": None}
            return {**over, "committed_at_finish": step, "unrecognised": left}
        case training.ArchiveBegun():
            return {"closed": False, "gpu_nodes_up": True, "archives_on": payload}
        case training.ArchiveVerified():
            return {"archive": payload, "doubted": False}
        case training.ArchiveUnproven():
            return {"unproven": payload, "doubted": False}
        case training.ArchiveFailed():
            return {"unproven": None}
    return {}


def _without(state: CampaignState, stage: Stage) -> dict[Stage, dict[str, Any]]:
    return {finished: outputs for finished, outputs in state.finished_stages.items() if finished != stage}


def _with(state: CampaignState, attempt: int, **facts: Any) -> tuple[AttemptRecord, ...]:
    """Return the attempts, with more known of one of them."""
    return tuple(known.model_copy(update=facts) if known.number == attempt else known for known in state.attempts)
