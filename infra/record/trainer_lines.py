"""The lines that a training pod prints for the infrastructure: one JSON object each, by a schema for every event.

Whatever else a pod prints is a job's text. A supervisor's own lines begin with a mark that no line of the job has when
it is passed on, so what a job prints is never taken for ours.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, ValidationError

from trainer.contract.frozen import Frozen
from trainer.contract.job import Count, Measure, Name

MARK = "\x1e"
"""Begins each line of a supervisor's own (RFC 7464); `trainer.supervisor.running` replaces it in the job's lines."""
_MOST_CHARACTERS = 2**16
Text = Annotated[str, AfterValidator(lambda text: text[:2000])]


class TrainerLine(Frozen, strict=True):
    """The fields that every line may have."""

    event: Name
    time: FiniteFloat | None = None
    """Seconds since 1970."""
    node: Name | None = None
    attempt: Count | None = None
    generation: Count | None = None
    rank: Count | None = None


class StepLine(TrainerLine):
    """A finished step, or an evaluation after it; further figures are for people."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    step: Count
    loss: Measure = None
    seconds: Annotated[float, Field(ge=0, le=10**9)] = 0.0
    norm: Measure = None


class BegunLine(TrainerLine):
    """The step from which an attempt goes on, 0 for a fresh start."""

    step: Count
    of_attempt: Count | None = None
    position: Count | None = None
    tier: Name | None = None
    parameters: Count | None = None


class StepTroubleLine(TrainerLine):
    step: Annotated[int, Field(ge=-1, le=10**15)]
    """-1: none yet."""
    of_attempt: Count | None = None
    why: Text = ""


class RefusedShardLine(TrainerLine):
    step: Count
    tier: Name = ""
    file: Text = ""
    seen: Text = ""
    wanted: Text = ""


class RestartedInPlaceLine(TrainerLine):
    step: Count | None = None
    culprit: Count | None = None
    of_node: Text | None = None
    cause: Text = ""
    seconds: FiniteFloat | None = None


class WatchLine(TrainerLine):
    step: Count
    detector: Name
    text: Text = ""
    did: Text = ""
    action: Name = ""
    value: float | Name | None = None
    threshold: float | Name | None = None
    onset: Count | None = None
    ranks: Annotated[list[Count], Field(max_length=2**16)] | None = None


class WeightsOnlyLine(TrainerLine):
    why: Text


class UnrecognisedLine(TrainerLine):
    files: Count
    bytes: Count
    newest: Text = ""
    why: Text = ""
    fits: Text = ""


class ResumedElsewhereLine(TrainerLine):
    offered: Count
    first: Count


class LossJumpedLine(TrainerLine):
    step: Count
    before: FiniteFloat
    now: FiniteFloat


LINES: dict[str, type[TrainerLine]] = {
    "step": StepLine,
    "evaluated": StepLine,
    "restored": BegunLine,
    "started_fresh": BegunLine,
    "refused_shard": RefusedShardLine,
    "refused_step": StepTroubleLine,
    "not_sealed": StepTroubleLine,
    "restarted_in_place": RestartedInPlaceLine,
    "watch": WatchLine,
    "unrecognised": UnrecognisedLine,
    "weights_only": WeightsOnlyLine,
    "resumed_elsewhere": ResumedElsewhereLine,
    "loss_jumped": LossJumpedLine,
}


def event_of(text: str, marked: bool) -> dict[str, Any] | None:
    """Return a line's object if it may be ours, else None. `marked`: only one that begins with the mark may be."""
    own = text.startswith(MARK)
    if len(text) > _MOST_CHARACTERS or not (own or (text.startswith("{") and not marked)):
        return None
    try:
        found = json.loads(text.removeprefix(MARK))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def line_of(event: dict[str, Any]) -> TrainerLine | None:
    """Return an event by the schema of its kind; None for a kind that nobody reads, or for one that does not fit."""
    try:
        return model.model_validate(event) if (model := LINES.get(event["event"])) is not None else None
    except ValidationError:
        return None
