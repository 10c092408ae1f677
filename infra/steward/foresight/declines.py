"""The readings of each node over time, and which of the nodes decline by them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from infra.steward.foresight.trends import EVERY_S, WINDOW, Reading, decline_of
from infra.steward.seeing.views import Observation, PodView
from trainer.contract import Status
from trainer.contract.job import NodeReadings


class Declines:
    """Keeps what the agents tell of their nodes. A steward that starts begins anew: a trend needs 21 minutes."""

    def __init__(self, ranks_per_node: int) -> None:
        self._ranks_per_node = ranks_per_node
        self._readings = dict[str, deque[Reading]]()
        """Instance -> its newest readings."""
        self._next_s = float("-inf")

    def note(self, view: Observation, statuses: Mapping[str, Status], now_s: float) -> dict[str, str]:
        """Take what is seen, at most every `EVERY_S`; return instance -> why it declines. `statuses`: by pod. `now_s`:
        of a monotonic clock."""
        if now_s < self._next_s or not view.in_flight:
            return {}
        self._next_s = now_s + EVERY_S
        instances = {node.name: node.instance for node in view.nodes if node.instance}
        seen = dict[str, deque[Reading]]()
        declines = dict[str, str]()
        for pod in view.pods:
            instance, status = instances.get(pod.node or ""), statuses.get(pod.name)
            if instance is None:
                continue
            rows = seen[instance] = self._readings.get(instance, deque(maxlen=WINDOW))
            if status is None or pod.phase != "Running":
                continue
            rows.append(self._reading(pod, status, now_s))
            if reason := decline_of(tuple(rows)):
                declines[instance] = reason
        self._readings = seen
        return declines

    def _reading(self, pod: PodView, status: Status, now_s: float) -> Reading:
        told, figures = status.readings or NodeReadings(), status.figures
        slowness = None
        if figures is not None and figures.slowest_rank is not None and pod.node_rank is not None:
            is_slowest = figures.slowest_rank // self._ranks_per_node == pod.node_rank
            slowness = figures.slowest_ratio if is_slowest else None
        return Reading(now_s, told.corrected, told.is_throttled, told.local_free, told.shm_free, slowness)
