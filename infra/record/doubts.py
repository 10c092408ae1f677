"""Sentences about checkpoints in doubt: one text for the driver's lines, the notices, `status` and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from infra.console.words import plural, size
from infra.record.events import Kind

Data = Mapping[str, Any]


def unrecognised_content(data: Data) -> str:
    """Return what lies in the job's folder and is no checkpoint that is recognised."""
    newest = f", the newest {data['newest']}" if data.get("newest") else ""
    fits = f"; `format: {data['fits']}` would fit" if data.get("fits") else ""
    return f"{_amount(data)} of the job are no known checkpoint{newest}: {data.get('why')}{fits}"


def unproven_copy(data: Data) -> str:
    """Return what was copied to S3 as it is, and why that proves nothing."""
    where = f"in S3 as they are, with digests: {data.get('prefix')}"
    return f"{_amount(data)} that are no proven checkpoint are {where}; {data.get('why')}"


def _not_sealed(data: Data) -> str:
    return f"step {data.get('step')} is not sealed: {data.get('why')}"


def _step_refused(data: Data) -> str:
    return f"step {data.get('step')} is refused: {data.get('why')}"


def _weights_only(data: Data) -> str:
    return f"the job's checkpoints are weights alone: {data.get('why')}"


def _started_over(data: Data) -> str:
    begun = f"attempt {data.get('attempt')} begins again at step 0 although step {data.get('before')} was trained"
    return f"{begun}: {data.get('why')}"


def _resumed_elsewhere(data: Data) -> str:
    begun = f"the job was given the checkpoint of step {data.get('offered')}, and the first step it reports is"
    return f"{begun} {data.get('first')}: it did not go on from there"


def _loss_jumped(data: Data) -> str:
    losses = f"{data.get('before')} before the restart and {data.get('now')} after it"
    return f"the loss of step {data.get('step')} was {losses}: the job may not have restored all of its state"


def _amount(data: Data) -> str:
    return f"{plural(int(data.get('files') or 0), 'file')} ({size(int(data.get('bytes') or 0))})"


DOUBTS: Mapping[Kind, Callable[[Data], str]] = {
    Kind.CHECKPOINT_UNRECOGNISED: unrecognised_content,
    Kind.CHECKPOINT_NOT_SEALED: _not_sealed,
    Kind.CHECKPOINT_STEP_REFUSED: _step_refused,
    Kind.CHECKPOINT_WEIGHTS_ONLY: _weights_only,
    Kind.TRAINING_STARTED_OVER: _started_over,
    Kind.TRAINING_RESUMED_ELSEWHERE: _resumed_elsewhere,
    Kind.TRAINING_LOSS_JUMPED: _loss_jumped,
}
"""Kind of event -> the sentence for its data. People are told of each kind once in an attempt."""
