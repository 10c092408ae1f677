"""What the steward takes from the trainers' events: the newest loss, and what belongs into the campaign's record."""

from __future__ import annotations

from typing import Any

from infra.record.events import Kind
from infra.record.store import LIVE, CampaignStore

_RECORDED = {"refused_shard": Kind.CHECKPOINT_REFUSED, "restored": Kind.CHECKPOINT_RESTORED}
"""Trainer events that belong into the record."""


class TrainerEvents:
    def __init__(self, store: CampaignStore) -> None:
        self.store = store
        self.loss: float | None = (store.get_json(LIVE) or {}).get("loss")
        """Of the newest step that any pod told of, also to a predecessor: what it took is not read again."""

    def take(self, pod: str, event: dict[str, Any]) -> None:
        """One event line of a pod; told again, it is recorded once. Raises what S3 says."""
        kind = _RECORDED.get(str(event.get("event")))
        if event.get("event") == "step" and isinstance(event.get("loss"), float):
            self.loss = event["loss"]
        if kind is None:
            return
        data = {"pod": pod, **{key: value for key, value in event.items() if key not in ("event", "time")}}
        # Only the answer of a write may have been lost, and a successor reads again what was not stored yet.
        if not any(known.kind is kind and known.data == data for known in self.store.events()):
            self.store.append(kind, **data)
