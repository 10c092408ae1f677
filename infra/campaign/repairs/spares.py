"""Orders an instance before another is given up, so that a node is left only where EC2 has one in its place."""

from __future__ import annotations

from datetime import UTC, datetime

from infra.cluster.kubernetes import OF_WORLD
from infra.cluster.standing.borrowed import GangNodes
from infra.session.context import Context

_WITHIN_S = 120.0
"""For EC2 to start an instance, or to refuse one. All nodes bill meanwhile."""


def order_spares(context: Context, nodes: GangNodes, count: int) -> int:
    """Ask for `count` instances above the gang's number, and return how many EC2 starts within two minutes; the group
    keeps these alone. Raises what AWS answers where the group cannot be set back."""
    wanted_count, start, spare_count = context.spec.nodes.count, datetime.now(UTC), 0
    try:
        known = {launch.instance for launch in nodes.launched()}
        nodes.set_desired(wanted_count + count)
        for _ in context.turns(_WITHIN_S):
            fresh = [launch for launch in nodes.launched() if launch.bills and launch.instance not in known]
            spare_count = min(len(fresh), count)
            if spare_count == count or nodes.refusals(start):
                break
    except OF_WORLD as error:
        context.progress.note(f"whether EC2 has another instance could not be seen: {error}"[:300])
    nodes.set_desired(wanted_count + spare_count)
    return spare_count
