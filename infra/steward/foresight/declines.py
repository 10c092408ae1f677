"""The readings of each node over time, and which of the nodes decline by them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from infra.steward.foresight.trends import EVERY_S, WINDOW, NodeReading, decline_of
from infra.steward.seeing.views import Observation, PodView
from trainer.contract import Status
from trainer.contract.job import NodeReadings


class Declines:
    """Keeps what the agents report of their nodes. A steward that starts begins anew: a trend needs 21 minutes."""

    def __init__(self, ranks_per_node: int) -> None:
        self._ranks_per_node = ranks_per_node
        self._readings = dict[str, deque[NodeReading]]()
        """Instance -> its newest readings."""
        self._paces = dict[str, deque[NodeReading]]()
        """Instance -> the slowness in its newest steps, each step once."""
        self._steps = dict[str, int]()
        """Instance -> the step of its newest slowness."""
        self._declines = dict[str, str]()
        """What the newest look gave."""
        self._next_s = float("-inf")

    def note(self, view: Observation, statuses: Mapping[str, Status], now_s: float) -> dict[str, str]:
        """Take what is seen, at most every `EVERY_S`; return instance -> why it declines, by the newest look. Nothing
        while no gang runs. `statuses`: by pod. `now_s`: of a monotonic clock."""
        if not view.in_flight:
            self._declines = {}
        if now_s < self._next_s or not view.in_flight:
            return self._declines
        self._next_s = now_s + EVERY_S
        instances = {node.name: node.instance for node in view.nodes if node.instance}
        readings, paces = dict[str, deque[NodeReading]](), dict[str, deque[NodeReading]]()
        declines = dict[str, str]()
        for pod in view.pods:
            instance, status = instances.get(pod.node or ""), statuses.get(pod.name)
            if instance is None:
                continue
            rows = readings[instance] = self._readings.get(instance, deque(maxlen=WINDOW))
            pace = paces[instance] = self._paces.get(instance, deque(maxlen=WINDOW))
            if status is None or pod.phase != "Running":
                continue
            read = status.readings or NodeReadings()
            rows.append(NodeReading(now_s, read.corrected, read.is_throttled, read.shm_free))
            if self._steps.get(instance) != status.step:
                self._steps[instance] = status.step
                pace.append(NodeReading(now_s, slowness=self._slowness(pod, status)))
            if reason := decline_of(tuple(rows)) or decline_of(tuple(pace)):
                declines[instance] = reason
        self._readings, self._paces, self._declines = readings, paces, declines
        return declines

    def _slowness(self, pod: PodView, status: Status) -> float | None:
        """Return the slowness of the node's rank in its newest step; None where another node has the slowest."""
        figures = status.figures
        if figures is None or figures.slowest_rank is None or pod.node_rank is None:
            return None
        is_slowest = figures.slowest_rank // self._ranks_per_node == pod.node_rank
        return figures.slowest_ratio if is_slowest else None
