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
        found, first = dict[str, dict[Sickness, timedelta]](), dict[str, float]()
        for node in facts:
            lasted = found.setdefault(node.name, {})
            for ailment in node.ails(accelerators):
                if ailment.sickness not in PATIENCE:
                    continue
                key = f"{node.name} {node.instance} {ailment.sickness}"
                first[key] = self.first.get(key, now)
                dated = moment - ailment.since if ailment.since else timedelta()
                known = lasted.get(ailment.sickness, timedelta())
                lasted[ailment.sickness] = max(known, dated, timedelta(seconds=now - first[key]))
        self.first = first
        return found
