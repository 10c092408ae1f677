"""How long nodes have been sick: by their conditions' own word, or since first seen so, whichever is longer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from infra.actions.fitness import PATIENCE, NodeFacts, Sickness


class Sickbay:
    """Remembers when a sickness was first seen: missing accelerators carry no date, and a node's clock may be late.

    What a condition dates itself also counts for who has just started to look.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, str, Sickness], float] = {}

    def look(self, facts: Iterable[NodeFacts], accelerators: int) -> dict[str, dict[Sickness, timedelta]]:
        """Node -> how long it has had each sickness that replacing helps against."""
        now, moment = time.monotonic(), datetime.now(UTC)
        found, first = dict[str, dict[Sickness, timedelta]](), dict[tuple[str, str, Sickness], float]()
        for node in facts:
            lasted = found.setdefault(node.name, {})
            for ailment in node.ails(accelerators):
                if ailment.sickness not in PATIENCE:
                    continue
                key = (node.name, node.instance, ailment.sickness)
                first[key] = self._first.get(key, now)
                dated = moment - ailment.since if ailment.since else timedelta()
                known = lasted.get(ailment.sickness, timedelta())
                lasted[ailment.sickness] = max(known, dated, timedelta(seconds=now - first[key]))
        self._first = first
        return found
