"""Causes of paid time, with their labels."""

from __future__ import annotations

from enum import StrEnum


class TimeCause(StrEnum):
    """Cause of paid time; every paid second has exactly one."""

    USEFUL = "useful"
    EVALUATION = "evaluation"
    SAVING = "saving"
    REDO = "redo"
    STARTUP = "startup"
    REPLACE = "replace"
    PROVISION = "provision"
    BAKE = "bake"
    PREFLIGHT = "preflight"
    ARCHIVE = "archive"
    TEARDOWN = "teardown"
    IDLE = "idle"


LABELS: dict[TimeCause, tuple[str, str]] = {
    TimeCause.USEFUL: ("useful training", "steps run for the first time"),
    TimeCause.EVALUATION: ("evaluation", "held-out loss, by rank 0"),
    TimeCause.SAVING: ("between steps", "checkpoint stall, logging, the last save"),
    TimeCause.REDO: ("redo", "steps that an earlier attempt had already run"),
    TimeCause.STARTUP: ("startup and restore", "steward, pods, ranks, checkpoint read; to the first step"),
    TimeCause.REPLACE: ("detect and replace", "from the last step before a failure to the next launch"),
    TimeCause.PROVISION: ("provision", "the campaign's stack"),
    TimeCause.BAKE: ("bake", "the trainer's image"),
    TimeCause.PREFLIGHT: ("preflight", "nodes up and proven"),
    TimeCause.ARCHIVE: ("archive", "golden checkpoint out, read back, evaluated"),
    TimeCause.TEARDOWN: ("teardown", "everything that bills destroyed"),
    TimeCause.IDLE: ("idle", "paid, and nothing of the above: no driver between stages, or a hold"),
}
