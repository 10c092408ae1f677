"""Trainer events: the newest loss, and the events that belong in the campaign's record."""

from __future__ import annotations

from typing import Any

from infra.record.objects import Unreadable
from infra.record.payloads.base import PRINTED
from infra.record.store import LIVE, CampaignStore
from infra.record.trainer_lines import line_of

_MOST_OF_A_KIND = 300
"""Events of a kind in a campaign's record that pods told; later ones are in the logs."""


class TrainerEvents:
    def __init__(self, store: CampaignStore) -> None:
        self.store = store
        self.loss = _known_loss(store)
        """Loss of the newest step; a predecessor's is read from the record, since its log lines are not read again."""
        self._full = set[str]()
        """Kinds of which the record has as many as it takes."""

    def take(self, pod: str, event: dict[str, Any]) -> None:
        """Take one event of a pod; one that does not fit the schema of its kind is text. A repeated event is recorded
        once. Raises S3's errors."""
        line, model = line_of(event), PRINTED.get(event["event"])
        if line is not None and line.event == "step" and line.loss is not None:
            self.loss = line.loss
        payload = None if model is None or model.kind in self._full else model.of_line(pod, event)
        if payload is None:
            return
        known_events = [entry.payload for entry in self.store.events() if entry.kind == payload.kind]
        if len(known_events) >= _MOST_OF_A_KIND:
            self._full.add(payload.kind)
            return
        # The event may be recorded already: a write's answer may be lost, and a successor reads unstored lines again.
        if payload not in known_events:
            self.store.append(payload)


def _known_loss(store: CampaignStore) -> float | None:
    try:
        figures = store.get_json(LIVE)
    except Unreadable:
        return None
    loss = figures.get("loss") if isinstance(figures, dict) else None
    return loss if isinstance(loss, float) else None
