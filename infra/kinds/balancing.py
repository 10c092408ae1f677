"""Load balancers, which a cluster's services may have created."""

from __future__ import annotations

from collections.abc import Mapping

from infra.aws.account import Account
from infra.kinds.kind import Checkpoints, Step, unpriced
from infra.kinds.listed import listed
from infra.kinds.thing import Thing, tags_of


def _tags(account: Account, one: Thing) -> Mapping[str, str]:
    described = account.client("elbv2").describe_tags(ResourceArns=[one.id])["TagDescriptions"]
    return tags_of(described[0]["Tags"]) if described else {}


def _classic_tags(account: Account, one: Thing) -> Mapping[str, str]:
    described = account.client("elb").describe_tags(LoadBalancerNames=[one.id])["TagDescriptions"]
    return tags_of(described[0]["Tags"]) if described else {}


_SERVICE = "elasticloadbalancing"
KINDS = (
    listed(
        "load balancer", Step.SERVICES, _SERVICE,
        "describe_load_balancers", "LoadBalancers", "LoadBalancerArn", "LoadBalancerName",
        client="elbv2", arn="", tags=_tags, remove="delete_load_balancer",
        price=unpriced, checkpoints=Checkpoints.FREE,
    ),
    listed(
        "classic load balancer", Step.SERVICES, _SERVICE,
        "describe_load_balancers", "LoadBalancerDescriptions", *["LoadBalancerName"] * 2,
        client="elb", arn="", tags=_classic_tags, remove="delete_load_balancer",
        price=unpriced, checkpoints=Checkpoints.FREE,
    ),
    listed(
        "target group", Step.SERVICES, _SERVICE,
        "describe_target_groups", "TargetGroups", "TargetGroupArn", "TargetGroupName",
        client="elbv2", arn="", tags=_tags, remove="delete_target_group",
    ),
)  # fmt: skip
