"""Live figures for `bivouac status` and the driver; each write replaces the last."""

from __future__ import annotations

import json
import time
from datetime import datetime
from decimal import Decimal

from infra.cluster.steward_config import StewardConfig
from infra.console.words import plural
from infra.record.meter import Reading
from infra.record.store import LIVE, CampaignStore
from infra.steward.decide import Action, Observation

_EVERY_S = 5.0
"""Longest time between two writes: the spent money grows while nothing else changes."""
_ALWAYS_NEW = ("at", "spent_usd", "step_seconds")


class Live:
    def __init__(self, store: CampaignStore, steps: int) -> None:
        """`steps`: the length of the whole training."""
        self._store, self._steps = store, steps
        self._said, self._published = "", 0.0
        self._first: tuple[int, int, datetime] | None = None
        """(attempt, step, time) of the first step that was seen of the attempt."""

    def tell(self, seen: Observation, action: Action, loss: float | None) -> None:
        """Write the figures when they changed, else every few seconds. `loss`: the newest, in nats per token."""
        step = min((pod.step for pod in seen.pods), default=0)
        figures = {
            "at": seen.now.isoformat(),
            "attempt": seen.attempt,
            "in_flight": seen.in_flight,
            "step": step,
            "steps": self._steps,
            "step_seconds": self._pace(seen, step),
            "loss": loss,
            "committed_step": seen.committed_step,
            "unrecognised": next((pod.unrecognised.model_dump() for pod in seen.pods if pod.unrecognised), None),
            "spent_usd": round(float(seen.spent_usd), 4),
            "usd_per_hour": float(seen.usd_per_hour),
            "action": action.kind,
            "why": "; ".join(dict.fromkeys((action.why, *(t for t in seen.troubles if t not in action.why)))),
            "pods": [
                pod.model_dump(mode="json", include={"index", "name", "node", "phase", "step"}) for pod in seen.pods
            ],
            "nodes": [node.model_dump(mode="json", exclude={"sick_for"}) for node in seen.nodes],
        }
        said = json.dumps({key: value for key, value in figures.items() if key not in _ALWAYS_NEW})
        now = time.monotonic()
        if said != self._said or now - self._published > _EVERY_S:
            self._said, self._published = said, now
            self._store.put_json(LIVE, figures)

    def _pace(self, seen: Observation, step: int) -> float | None:
        """Return the mean seconds of a step of the attempt; None before two of them were seen."""
        if self._first is None or self._first[0] != seen.attempt or step < self._first[1]:
            self._first = (seen.attempt, step, seen.now) if step > 0 else None
        if self._first is None or step == self._first[1]:
            return None
        return (seen.now - self._first[2]).total_seconds() / (step - self._first[1])


def bills(config: StewardConfig, reading: Reading) -> str:
    """Return what bills by the plan's prices, in words."""
    nodes, rate = round(reading.gpu_share * config.spec.nodes.count), reading.usd_per_hour
    among = f"with {plural(nodes, 'GPU node')}" if nodes else "without a GPU node"
    return f"about {rate.quantize(Decimal('0.01'))} USD/h {among}, until the teardown"
