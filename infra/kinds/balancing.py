"""Load balancers, which a cluster's services may have created."""

from __future__ import annotations

from collections.abc import Mapping

from infra.aws.account import Account
from infra.kinds.kind import Checkpoints, Step, no_price
from infra.kinds.listed import listed_kind
from infra.kinds.thing import Thing, tags_of


def _tags(account: Account, thing: Thing) -> Mapping[str, str]:
    descriptions = account.client("elbv2").describe_tags(ResourceArns=[thing.id])["TagDescriptions"]
    return tags_of(descriptions[0]["Tags"]) if descriptions else {}


def _classic_tags(account: Account, thing: Thing) -> Mapping[str, str]:
    descriptions = account.client("elb").describe_tags(LoadBalancerNames=[thing.id])["TagDescriptions"]
    return tags_of(descriptions[0]["Tags"]) if descriptions else {}


_SERVICE = "elasticloadbalancing"
KINDS = (
    listed_kind(
        "load balancer", Step.SERVICES, _SERVICE,
        "describe_load_balancers", "LoadBalancers", "LoadBalancerArn", "LoadBalancerName",
        client="elbv2", arn="", tags=_tags, remove="delete_load_balancer",
        price=no_price, checkpoints=Checkpoints.FREE,
    ),
    listed_kind(
        "classic load balancer", Step.SERVICES, _SERVICE,
        "describe_load_balancers", "LoadBalancerDescriptions", *["LoadBalancerName"] * 2,
        client="elb", arn="", tags=_classic_tags, remove="delete_load_balancer",
        price=no_price, checkpoints=Checkpoints.FREE,
    ),
    listed_kind(
        "target group", Step.SERVICES, _SERVICE,
        "describe_target_groups", "TargetGroups", "TargetGroupArn", "TargetGroupName",
        client="elbv2", arn="", tags=_tags, remove="delete_target_group",
    ),
)  # fmt: skip
