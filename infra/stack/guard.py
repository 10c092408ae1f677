"""The deadline's schedule, which AWS itself runs: it limits the cost even if all our processes are dead."""

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
from infra.stack.closer import ClosersClock

_TARGET = "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig"


class Guard(pulumi.ComponentResource):
    """A `schedule` that knows the node group only by name, so that it exists before and after it; with `code`, another
    one that starts the closer. `first`: what is made before anything bills and falls after it."""

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
        role = aws.iam.Role(
            "guard",
            name=names.role("guard"),
            assume_role_policy=policies.trust("scheduler.amazonaws.com", policies.place(spec)),
            permissions_boundary=boundary_arn(policies.place(spec)),
            opts=ResourceOptions(parent=self),
        )
        rights = policies.guard(spec)
        if code is not None:
            rights.append(asking(policies.place(spec), spec.campaign, code))
        policy = aws.iam.RolePolicy(
            "guard",
            name="guard",
            role=role.name,
            policy=policies.document(rights),
            opts=ResourceOptions(parent=self),
        )

        def ends(label: str, name: str, nodes: str, group: str) -> aws.scheduler.Schedule:
            return aws.scheduler.Schedule(
                label,
                name=name,
                description=f"Sets the {nodes} of campaign {spec.campaign} to zero",
                schedule_expression=f"at({deadline.astimezone(UTC):%Y-%m-%dT%H:%M:%S})",
                schedule_expression_timezone="UTC",
                flexible_time_window={"mode": "OFF"},
                target={
                    "arn": _TARGET,
                    "role_arn": role.arn,
                    "input": scale_to_zero(names, group),
                    "retry_policy": {"maximum_event_age_in_seconds": 86_400, "maximum_retry_attempts": 185},
                },
                opts=ResourceOptions(parent=self, depends_on=[policy]),
            )

        self.schedule = ends("deadline", names.schedule, "GPU nodes", names.gpu_group)
        self.of_data: list[pulumi.Resource] = []
        if preparing:
            self.of_data.append(
                ends("data", names.of("schedule", "data"), "nodes for the data", names.of("node group", DATA_POOL))
            )
        self.first: list[pulumi.Resource] = []
        if code is not None:
            clock = ClosersClock(spec, code, role, ResourceOptions(parent=self, depends_on=[policy]))
            self.first.append(clock.schedule)
        self.register_outputs({"schedule": self.schedule.name})


def scale_to_zero(names: Names, group: str) -> str:
    """Return a request of `UpdateNodegroupConfig`; Scheduler wants Pascal case, unlike EKS itself."""
    return json.dumps(
        {
            "ClusterName": names.cluster,
            "NodegroupName": group,
            "ScalingConfig": {"MinSize": 0, "DesiredSize": 0},
        },
        sort_keys=True,
    )
