"""Durations of nodes' sicknesses: since the condition's date or since first seen, whichever is longer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from infra.cluster.fitness import PATIENCE, NodeFacts, Sickness


class ConditionHistory:
    """Remembers when a sickness was first seen: missing accelerators have no date, and a node's clock may be late.

    The date in a condition also counts, for an observer that has just started.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.first: dict[str, float] = {}
        """Node, instance and sickness -> when first seen, in seconds of the monotonic clock."""

    def look(
        self, facts: Iterable[NodeFacts], accelerators: int, at: datetime | None = None
    ) -> dict[str, dict[Sickness, timedelta]]:
        """Return node -> how long it has had each sickness that a replacement cures. `at`: now, by a clock that is more
        reliable than this machine's."""
        now, moment = self._monotonic(), at or datetime.now(UTC)
        durations, starts = dict[str, dict[Sickness, timedelta]](), dict[str, float]()
        for node in facts:
            sicknesses = durations.setdefault(node.name, {})
            for ailment in node.ails(accelerators):
                if ailment.sickness not in PATIENCE:
                    continue
                key = f"{node.name} {node.instance} {ailment.sickness}"
                starts[key] = self.first.get(key, now)
                by_date = moment - ailment.since if ailment.since else timedelta()
                longest = sicknesses.get(ailment.sickness, timedelta())
                sicknesses[ailment.sickness] = max(longest, by_date, timedelta(seconds=now - starts[key]))
        self.first = starts
        return durations
