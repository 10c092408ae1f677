"""What each kind of event says: one model a kind, with its fields, sentence, effect on the state, and who is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.record.kinds import Kind
from infra.record.payloads import attempts, checkpoints, stages, training
from infra.record.payloads.base import Payload as Payload

PAYLOADS: Mapping[Kind, type[Payload]] = {
    model.kind: model
    for module in (stages, attempts, checkpoints, training)
    for model in vars(module).values()
    if isinstance(model, type)
    and issubclass(model, Payload)
    and "kind" in vars(model)
    and model.__module__ == module.__name__
}


def payload_of(kind: Kind, data: Mapping[str, Any]) -> Payload:
    """Return what a stored event says. Raises `ValueError` where its data do not fit its kind."""
    return PAYLOADS[kind].model_validate(data)
