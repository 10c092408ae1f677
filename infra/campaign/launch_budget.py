"""The launch budget: how long GPU nodes may wait for a driver that is dead or asleep before AWS itself ends them.

The driver postpones the stack's schedules at each step from the first GPU node on, and switches them off once the
steward has launched, which watches the nodes from then on. They need none of our processes, and no CodeBuild.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from infra.aws.schedules import at_expression, change_schedule
from infra.plan.purchase import RESERVED
from infra.plan.survey import environment
from infra.session.context import Context
from infra.spec.campaign import Spec

MARGIN = timedelta(minutes=30)
"""For the health check, and for EC2 to take back nodes that are replaced."""


def budget(spec: Spec) -> timedelta:
    """Return the longest time between two steps of the driver: nodes come, their pods start, the nodes are judged."""
    return spec.capacity_timeout + spec.recovery.startup_timeout + MARGIN


def postpone(context: Context) -> None:
    """Let AWS set the GPU nodes to zero after the budget, from now. Raises what AWS answers: without this, no nodes.

    Not for reserved nodes, whose places bill in any case until the deadline, nor for borrowed ones.
    """
    if not environment(context.spec).makes_cluster:
        return
    moment = {"ScheduleExpression": at_expression(min(datetime.now(UTC) + budget(context.spec), context.deadline))}
    # An earlier steward that died has armed its own: they would strike the nodes of this launch.
    _change(context, context.names.silence_schedules, moment)
    if context.spec.nodes.capacity not in RESERVED:
        _change(context, context.names.launch_schedules, {**moment, "State": "ENABLED"})


def switch_off(context: Context) -> None:
    """Leave the nodes to the steward and the deadline. Raises what AWS answers: training would be cut off later."""
    _change(context, context.names.launch_schedules, {"State": "DISABLED"})


def _change(context: Context, names: Iterable[str], changes: dict[str, str]) -> None:
    """Change the schedules; a campaign that is older than them has none."""
    client = context.account.client("scheduler")
    for name in names:
        if not change_schedule(client, name, changes, context.guard):
            return
