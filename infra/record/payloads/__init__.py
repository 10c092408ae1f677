"""What each kind of event says: one model a kind, with its fields, sentence, and who is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.record.payloads import alerts as alerts
from infra.record.payloads import attempts as attempts
from infra.record.payloads import checkpoints as checkpoints
from infra.record.payloads import stages as stages
from infra.record.payloads import training as training
from infra.record.payloads.base import PAYLOADS, Payload


def payload_of(kind: str, data: Mapping[str, Any]) -> Payload:
    """Return what a stored event says. Raises `ValueError` where its data do not fit its kind."""
    return PAYLOADS[kind].model_validate(data)
