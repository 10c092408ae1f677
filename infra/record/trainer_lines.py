"""The lines that a training pod prints for the infrastructure: one JSON object each.

Here are the lines of steps; `PrintedPayload` is the base of those that the record keeps. Whatever else a pod prints is
a job's text. A supervisor's own lines begin with a mark that no line of the job has when it is passed on, so what a job
prints is never taken for ours.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, ValidationError

from infra.record.payloads.base import PRINTED
from trainer.contract.frozen import Frozen
from trainer.contract.job import Count, Measure

MARK = "\x1e"
"""Begins each line of a supervisor's own (RFC 7464); `trainer.supervisor.running` replaces it in the job's lines."""
_MOST_CHARACTERS = 2**16


class StepLine(Frozen, extra="ignore", strict=True):
    """A finished step, an evaluation after it, or the step from which an attempt goes on; further figures are for
    people."""

    event: Literal["step", "evaluated", "restored", "started_fresh"]
    time: FiniteFloat | None = None
    """Seconds since 1970."""
    generation: Count | None = None
    step: Count
    """0 for a fresh start."""
    loss: Measure = None
    seconds: Annotated[float, Field(ge=0, le=10**9)] = 0.0
    norm: Measure = None
    parameters: Annotated[Count | None, BeforeValidator(lambda count: count if isinstance(count, int) else None)] = None
    """Of a begin; a job may print what it likes under this name."""


def event_of(text: str, marks: bool) -> dict[str, Any] | None:
    """Return a line's object if it may be ours, else None. `marks`: only one that begins with the mark may be."""
    is_own = text.startswith(MARK)
    if len(text) > _MOST_CHARACTERS or not (is_own or (text.startswith("{") and not marks)):
        return None
    try:
        content = json.loads(text.removeprefix(MARK))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("event"), str) else None


def line_of(event: dict[str, Any]) -> StepLine | None:
    """Return the line of a step; None for any other, and for one that does not fit the schema."""
    kept_as = PRINTED.get(event["event"])
    if kept_as is not None and kept_as.of_line("", event) is None:
        return None  # the record would refuse it
    try:
        return StepLine.model_validate(event)
    except ValidationError:
        return None
