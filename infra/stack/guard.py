"""The schedules of deadline, launch and silence, which AWS runs: they limit the cost if all our processes are dead.

They are all that an account has in which CodeBuild runs no builds, and no closer with them. A schedule's request is
fixed when it is made, so EC2's TerminateInstances, which asks for the instances' names, cannot be one: EKS's own size
of the group can.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pulumi
import pulumi_aws as aws
from pulumi import ResourceOptions

from infra.aws.schedules import at_expression
from infra.cluster.steward_config import LONGEST_SILENCE
from infra.spec.campaign import Spec
from infra.spec.names import DATA_POOL, Names
from infra.stack.access import policies
from infra.stack.access.ceiling import boundary_arn
from infra.stack.access.closing import asking
from infra.stack.access.identity import limited_role
from infra.stack.closer import ClosersClock

_RESIZE, _TELL = (f"arn:aws:scheduler:::aws-sdk:{call}" for call in ("eks:updateNodegroupConfig", "sns:publish"))


_MOVED = ("launch", "silence")
"""Schedules whose time and state our processes set: the driver (infra/campaign/launch_budget.py) and the steward
(infra/steward/silence.py)."""


class Guard(pulumi.ComponentResource):
    """A schedule that knows the node group only by name, so that it exists before and after it; with `code`, others
    that do the same for a late launch and a silent steward, that tell people, and that start the closer. `first`: what
    is made before anything bills and falls after it; `before_gpu`: likewise of the GPU nodes."""

    def __init__(
        self,
        spec: Spec,
        deadline: datetime,
        code: str | None = None,
        preparing: bool = False,
        opts: ResourceOptions | None = None,
    ) -> None:
        """`code`: digest of the closer's code; None for a campaign that is older than the closer. `preparing`: there
        are nodes that prepare the data."""
        super().__init__("bivouac:infra:Guard", "guard", None, opts)
        names = Names(spec)
        rights = policies.guard(spec)
        if code is not None:
            rights.append(asking(policies.place(spec), spec.campaign, code))
        trust = policies.trust("scheduler.amazonaws.com", policies.place(spec))
        boundary, child = boundary_arn(policies.place(spec)), ResourceOptions(parent=self)
        role, policy = limited_role("guard", names.role("guard"), trust, boundary, rights, child)

        def schedule(label: str, description: str, call: str, request: str) -> aws.scheduler.Schedule:
            is_moved = label.startswith(_MOVED)
            return aws.scheduler.Schedule(
                label,
                name=names.of("schedule", label),
                description=description,
                schedule_expression=at_expression(deadline),
                schedule_expression_timezone="UTC",
                flexible_time_window={"mode": "OFF"},
                state="DISABLED" if is_moved else "ENABLED",
                target={
                    "arn": call,
                    "role_arn": role.arn,
                    "input": request,
                    "retry_policy": {"maximum_event_age_in_seconds": 86_400, "maximum_retry_attempts": 185},
                },
                opts=ResourceOptions(
                    parent=self,
                    depends_on=[policy],
                    ignore_changes=["scheduleExpression", "state"] if is_moved else None,
                ),
            )

        to_zero = f"Sets the {{}} of campaign {spec.campaign} to zero"
        gpu, gpu_group = to_zero.format("GPU nodes"), scale_to_zero(names, names.gpu_group)
        self.schedule = schedule("deadline", gpu, _RESIZE, gpu_group)
        self.before_gpu: list[pulumi.Resource] = [self.schedule]
        self.of_data: list[pulumi.Resource] = []
        if preparing:
            group = scale_to_zero(names, names.of("node group", DATA_POOL))
            self.of_data.append(schedule("data", to_zero.format("nodes for the data"), _RESIZE, group))
        self.first: list[pulumi.Resource] = []
        if code is not None:
            self.before_gpu += [schedule(label, gpu, _RESIZE, gpu_group) for label in _MOVED]
            for moment, words in _NOTICES.items():
                schedule(f"{moment}-notice", f"Tells people: {words[0]}", _TELL, notice(spec, *words))
            clock = ClosersClock(spec, code, role, ResourceOptions(parent=self, depends_on=[policy]))
            self.first.append(clock.schedule)
        self.register_outputs({"schedule": self.schedule.name})


_NOTICES = {
    "deadline": (
        "its deadline has passed",
        "It still stands. A schedule of the account sets its GPU nodes to zero now. What else stands bills until it is "
        "torn down: by the account's closer, which begins within half an hour where CodeBuild runs builds, else by "
        "`bivouac down {campaign}`.",
    ),
    "launch": (
        "training did not begin in time",
        "Its GPU nodes were asked for, and no driver has brought them to training within the launch budget. A schedule "
        "of the account sets them to zero now. What else stands bills: `bivouac run` with the same spec goes on, "
        "`bivouac down {campaign}` ends it.",
    ),
    "silence": (
        "its steward is silent",
        f"The steward has given no sign of life for {LONGEST_SILENCE // timedelta(minutes=1)} minutes. A schedule of "
        "the account sets the GPU nodes to zero now. Checkpoints stay where they are, and what else stands bills: "
        "`bivouac run` with the same spec goes on and archives, `bivouac down {campaign}` ends it.",
    ),
}
"""Moment -> subject and text of the notice."""


def notice(spec: Spec, subject: str, text: str) -> str:
    """Return a request of `Publish`, on the topic on which people are told of the campaign."""
    body = {"Subject": f"bivouac {spec.campaign}: {subject}", "Message": text.format(campaign=spec.campaign)}
    return json.dumps({"TopicArn": spec.notices_topic, **body}, sort_keys=True)


def scale_to_zero(names: Names, group: str) -> str:
    """Return a request of `UpdateNodegroupConfig`; Scheduler wants Pascal case, unlike EKS itself."""
    return json.dumps(
        {"ClusterName": names.cluster, "NodegroupName": group, "ScalingConfig": {"MinSize": 0, "DesiredSize": 0}},
        sort_keys=True,
    )
