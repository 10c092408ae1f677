"""The existing place for builders that a spec names, as AWS describes it: what `infra.plan.checks.builders` judges.
Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.aws.account import Account, every
from infra.aws.given.network import HTTPS, VpcLook
from infra.plan.facts import SeenBuilders
from infra.spec.campaign import Spec


def seen_builders(account: Account, spec: Spec) -> SeenBuilders | None:
    """Return what is at the spec's `image.builders`; None if it names none."""
    place = spec.image.builders
    if place is None:
        return None
    ec2 = account.client("ec2")
    by_id = [{"Name": "subnet-id", "Values": [place.subnet_id]}]
    subnets = list(every(ec2, "describe_subnets", "Subnets", Filters=by_id))
    if not subnets:
        return SeenBuilders(subnet=None)
    look = VpcLook(account, subnets[0]["VpcId"])
    groups = look.listing("describe_security_groups", "SecurityGroups", group_id=[place.security_group_id])
    return SeenBuilders(
        subnet=next(look.subnets([place.subnet_id])),
        endpoints=look.endpoints(spec.region),
        group=bool(groups),
        https_to=tuple(
            target for group in groups for rule in group.get("IpPermissionsEgress", ()) for target in _to(rule)
        ),
        let_in=tuple(target for group in groups for rule in group.get("IpPermissions", ()) for target in _ends(rule)),
    )


def _to(rule: Mapping[str, Any]) -> Iterator[str]:
    every_port = str(rule["IpProtocol"]) == "-1"
    https = str(rule["IpProtocol"]) == "tcp" and rule.get("FromPort", 0) <= HTTPS <= rule.get("ToPort", 65535)
    if every_port or https:
        yield from _ends(rule)


def _ends(rule: Mapping[str, Any]) -> Iterator[str]:
    """Yield the other ends of a rule: ranges, prefix lists, security groups."""
    for member, key in (("IpRanges", "CidrIp"), ("PrefixListIds", "PrefixListId"), ("UserIdGroupPairs", "GroupId")):
        yield from (entry[key] for entry in rule.get(member, ()))
