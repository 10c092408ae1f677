"""The lines that a training pod prints for the infrastructure: one JSON object each.

Here are the lines of steps; `PrintedPayload` is the base of those that the record keeps. Whatever else a pod prints is
a job's text. A supervisor's own lines begin with a mark that no line of the job has when it is passed on, so what a job
prints is never taken for ours.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, ValidationError

from trainer.contract.frozen import Frozen
from trainer.contract.job import Count, Measure, Name

MARK = "\x1e"
"""Begins each line of a supervisor's own (RFC 7464); `trainer.supervisor.running` replaces it in the job's lines."""
_MOST_CHARACTERS = 2**16


class TrainerLine(Frozen, strict=True):
    """The fields that every line may have."""

    event: Name
    time: FiniteFloat | None = None
    """Seconds since 1970."""
    node: Name | None = None
    attempt: Count | None = None
    generation: Count | None = None
    rank: Count | None = None


class StepLine(TrainerLine, extra="ignore"):
    """A finished step, or an evaluation after it; further figures are for people."""

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


LINES: dict[str, type[TrainerLine]] = {
    "step": StepLine,
    "evaluated": StepLine,
    "restored": BegunLine,
    "started_fresh": BegunLine,
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
    """Return the line of a step or of a beginning; None for any other, and for one that does not fit its schema."""
    try:
        return model.model_validate(event) if (model := LINES.get(event["event"])) is not None else None
    except ValidationError:
        return None
