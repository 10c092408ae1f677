"""The causes of paid time, and what each means to people."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Where a paid second went; every one has exactly one cause."""

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


LABELS: dict[Cause, tuple[str, str]] = {
    Cause.USEFUL: ("useful training", "steps run for the first time"),
    Cause.EVALUATION: ("evaluation", "held-out loss, by rank 0"),
    Cause.SAVING: ("between steps", "checkpoint stall, logging, the last save"),
    Cause.REDO: ("redo", "steps that an earlier attempt had already run"),
    Cause.STARTUP: ("startup and restore", "steward, pods, ranks, checkpoint read; to the first step"),
    Cause.REPLACE: ("detect and replace", "from the last step before a failure to the next launch"),
    Cause.PROVISION: ("provision", "the campaign's stack"),
    Cause.BAKE: ("bake", "the trainer's image"),
    Cause.PREFLIGHT: ("preflight", "nodes up and proven"),
    Cause.ARCHIVE: ("archive", "golden checkpoint out, read back, evaluated"),
    Cause.TEARDOWN: ("teardown", "everything that bills destroyed"),
    Cause.IDLE: ("idle", "paid, and nothing of the above: no driver between stages, or a hold"),
}
