"""Trainer events: the newest loss, and the events that belong in the campaign's record."""

from __future__ import annotations

from typing import Any

from infra.record.events import Kind
from infra.record.store import LIVE, CampaignStore

_RECORDED = {
    "refused_shard": Kind.CHECKPOINT_REFUSED,
    "restored": Kind.CHECKPOINT_RESTORED,
    "restarted_in_place": Kind.ATTEMPT_RESTARTED_IN_PLACE,
    "watch": Kind.WATCH,
}
_MOST_ALARMS = 300
"""Alarms of the watch in a campaign's record; later ones are in the logs."""


class TrainerEvents:
    def __init__(self, store: CampaignStore) -> None:
        self.store = store
        self.loss: float | None = (store.get_json(LIVE) or {}).get("loss")
        """Loss of the newest step; a predecessor's is read from the record, since its log lines are not read again."""

    def take(self, pod: str, event: dict[str, Any]) -> None:
        """Take one event of a pod. A repeated event is recorded once. Raises S3's errors."""
        kind = _RECORDED.get(str(event.get("event")))
        if event.get("event") == "step" and isinstance(event.get("loss"), float):
            self.loss = event["loss"]
        if kind is None:
            return
        known_events = self.store.events()
        if kind is Kind.WATCH and sum(known.kind is kind for known in known_events) >= _MOST_ALARMS:
            return
        data = {"pod": pod, **{key: value for key, value in event.items() if key not in ("event", "time")}}
        # The event may be recorded already: a write's answer may be lost, and a successor reads unstored lines again.
        if not any(known.kind is kind and known.data == data for known in known_events):
            self.store.append(kind, **data)
