"""The launch budget: how long GPU nodes may wait for a driver that is dead or asleep before AWS itself ends them.

The driver postpones the stack's schedules at each step from the first GPU node on, and switches them off once the
steward has launched, which watches the nodes from then on. They need none of our processes, and no CodeBuild.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from botocore.exceptions import ClientError

from infra.aws.account import says_missing
from infra.plan.purchase import RESERVED
from infra.plan.survey import environment
from infra.session.context import Context
from infra.spec.campaign import Spec
from infra.stack.guard import at_expression

MARGIN = timedelta(minutes=30)
"""For the health check, and for EC2 to take back nodes that are replaced."""
_ANSWER_ONLY = ("Arn", "CreationDate", "LastModificationDate", "ResponseMetadata")
"""Of GetSchedule's answer: UpdateSchedule takes all the rest, and sets to its default what is left out."""


def budget(spec: Spec) -> timedelta:
    """Return the longest time between two steps of the driver: nodes come, their pods start, the nodes are judged."""
    return spec.capacity_timeout + spec.recovery.startup_timeout + MARGIN


def postpone(context: Context) -> None:
    """Let AWS set the GPU nodes to zero after the budget, from now. Raises what AWS answers: without this, no nodes.

    Not for reserved nodes, whose places bill in any case until the deadline, nor for borrowed ones.
    """
    if context.spec.nodes.capacity not in RESERVED and environment(context.spec).makes_cluster:
        end = min(datetime.now(UTC) + budget(context.spec), context.deadline)
        _change(context, {"ScheduleExpression": at_expression(end), "State": "ENABLED"})


def switch_off(context: Context) -> None:
    """Leave the nodes to the steward and the deadline. Raises what AWS answers: training would be cut off later."""
    _change(context, {"State": "DISABLED"})


def _change(context: Context, changes: dict[str, str]) -> None:
    client = context.account.client("scheduler")
    for name in context.names.launch_schedules:
        try:
            schedule = client.get_schedule(Name=name)
        except ClientError as error:
            if says_missing(error):
                return  # a campaign that is older than its launch budget
            raise
        context.guard()
        client.update_schedule(**{key: schedule[key] for key in schedule if key not in _ANSWER_ONLY} | changes)
