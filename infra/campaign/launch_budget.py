"""The launch budget: how long GPU nodes may wait for a driver that is dead or asleep before AWS itself ends them.

The driver postpones the stack's schedules at each step from the first GPU node on, and switches them off once the
steward has launched, which watches the nodes from then on. They need none of our processes, and no CodeBuild.
A schedule knows times alone. At the plan's rate the time bounds the money, and the plan says that sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from botocore.exceptions import ClientError

from infra.aws.account import says_missing
from infra.aws.schedules import at_expression, change_schedule, fired_at
from infra.cluster.nodes import NodeGroup
from infra.plan.estimates.clock import launch_wait
from infra.plan.purchase import RESERVED
from infra.plan.survey import environment
from infra.record.payloads.attempts import NodesAtZero
from infra.session.context import Context


def postpone(context: Context) -> None:
    """Let AWS set the GPU nodes to zero after the budget, from now. Raises what AWS answers: without this, no nodes.

    Not for reserved nodes, whose places bill in any case until the deadline, nor for borrowed ones.
    """
    if not environment(context.spec).makes_cluster:
        return
    moment = {"ScheduleExpression": at_expression(min(datetime.now(UTC) + launch_wait(context.spec), context.deadline))}
    # An earlier steward that died has armed its own: they would strike the nodes of this launch.
    _change(context, context.names.silence_schedules, moment)
    if context.spec.nodes.capacity not in RESERVED:
        _change(context, context.names.launch_schedules, {**moment, "State": "ENABLED"})


def switch_off(context: Context) -> None:
    """Leave the nodes to the steward and the deadline. Raises what AWS answers: training would be cut off later."""
    _change(context, context.names.launch_schedules, {"State": "DISABLED"})


def note_fired(context: Context) -> None:
    """Record the time at which one of AWS's schedules has set the GPU nodes to zero, where nobody was there to.

    Until then the record counts them as up: they would bill on, and no driver would prove new ones. Raises what AWS
    answers.
    """
    if not context.state().gpu_nodes_up or not environment(context.spec).makes_cluster:
        return
    names = context.names
    group = NodeGroup(context.account, names, context.guard, names.gpu_group)
    try:
        if group.desired() > 0:
            return
    except ClientError as error:
        if says_missing(error):
            return  # it was not made yet, or is torn down
        raise
    client, now = context.account.client("scheduler"), datetime.now(UTC)
    schedules = (*names.silence_schedules, *names.launch_schedules, names.schedule)
    moments = [moment for name in schedules if (moment := fired_at(client, name, now)) is not None]
    if moments:
        context.guard()
        context.store.append(NodesAtZero(group=names.gpu_group, since=min(moments)))


def _change(context: Context, names: Iterable[str], changes: dict[str, str]) -> None:
    """Change the schedules; a campaign that is older than them has none."""
    client = context.account.client("scheduler")
    for name in names:
        if not change_schedule(client, name, changes, lambda _: context.guard()):
            return
