"""Causes of paid time, with their labels."""

from __future__ import annotations

from enum import StrEnum


class TimeCause(StrEnum):
    """Cause of paid time, its label and its meaning; every paid second has exactly one cause."""

    label: str
    meaning: str

    def __new__(cls, value: str, label: str, meaning: str) -> TimeCause:
        cause = str.__new__(cls, value)
        cause._value_, cause.label, cause.meaning = value, label, meaning
        return cause

    USEFUL = "useful", "useful training", "steps run for the first time"
    EVALUATION = "evaluation", "evaluation", "held-out loss, by rank 0"
    SAVING = "saving", "between steps", "checkpoint stall, logging, the last save"
    REDO = "redo", "redo", "steps that an earlier attempt had already run"
    STARTUP = "startup", "startup and restore", "steward, pods, ranks, checkpoint read; to the first step"
    REPLACE = "replace", "detect and replace", "from the last step before a failure to the next launch"
    PROVISION = "provision", "provision", "the campaign's stack"
    BAKE = "bake", "bake", "the trainer's image"
    PREFLIGHT = "preflight", "preflight", "nodes up and proven"
    ARCHIVE = "archive", "archive", "golden checkpoint out, read back, evaluated"
    TEARDOWN = "teardown", "teardown", "everything that bills destroyed"
    IDLE = "idle", "idle", "paid, and nothing of the above: no driver between stages, or a hold"
