"""The schedules of deadline and launch, which AWS itself runs: they limit the cost even if all our processes are dead.

They are all that an account has in which CodeBuild runs no builds, and no closer with them. A schedule's request is
fixed when it is made, so EC2's TerminateInstances, which asks for the instances' names, cannot be one: EKS's own size
of the group can.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pulumi
import pulumi_aws as aws
from pulumi import ResourceOptions

from infra.spec.campaign import Spec
from infra.spec.names import DATA_POOL, Names
from infra.stack.access import policies
from infra.stack.access.ceiling import boundary_arn
from infra.stack.access.closing import asking
from infra.stack.access.identity import limited_role
from infra.stack.closer import ClosersClock

_RESIZE, _TELL = (f"arn:aws:scheduler:::aws-sdk:{call}" for call in ("eks:updateNodegroupConfig", "sns:publish"))


class Guard(pulumi.ComponentResource):
    """A schedule that knows the node group only by name, so that it exists before and after it; with `code`, others
    that do the same for a launch that takes too long, that tell people, and that start the closer. `first`: what is
    made before anything bills and falls after it; `before_gpu`: likewise of the GPU nodes."""

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
            is_launch = label.startswith("launch")
            return aws.scheduler.Schedule(
                label,
                name=names.of("schedule", label),
                description=description,
                schedule_expression=at_expression(deadline),
                schedule_expression_timezone="UTC",
                flexible_time_window={"mode": "OFF"},
                # The driver sets the launch's time and state: see infra/campaign/launch_budget.py.
                state="DISABLED" if is_launch else "ENABLED",
                target={
                    "arn": call,
                    "role_arn": role.arn,
                    "input": request,
                    "retry_policy": {"maximum_event_age_in_seconds": 86_400, "maximum_retry_attempts": 185},
                },
                opts=ResourceOptions(
                    parent=self,
                    depends_on=[policy],
                    ignore_changes=["scheduleExpression", "state"] if is_launch else None,
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
            self.before_gpu.append(schedule("launch", gpu, _RESIZE, gpu_group))
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
}
"""Moment -> subject and text of the notice."""


def notice(spec: Spec, subject: str, text: str) -> str:
    """Return a request of `Publish`, on the topic on which people are told of the campaign."""
    body = {"Subject": f"bivouac {spec.campaign}: {subject}", "Message": text.format(campaign=spec.campaign)}
    return json.dumps({"TopicArn": spec.notices_topic, **body}, sort_keys=True)


def at_expression(moment: datetime) -> str:
    """Return the expression of a schedule that fires once, by its timezone UTC."""
    return f"at({moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S})"


def scale_to_zero(names: Names, group: str) -> str:
    """Return a request of `UpdateNodegroupConfig`; Scheduler wants Pascal case, unlike EKS itself."""
    return json.dumps(
        {"ClusterName": names.cluster, "NodegroupName": group, "ScalingConfig": {"MinSize": 0, "DesiredSize": 0}},
        sort_keys=True,
    )
