"""Common parts of EC2's kinds: listing, search by tags, and resources in a campaign's VPC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.finding import tagged_as
from infra.kinds.kind import Ask, Find, Inputs, Remain, ResourceKind, Step
from infra.kinds.listed import listed_kind
from infra.kinds.thing import CLUSTER_TAG, OWNED, maker_of, tags_of
from infra.spec.names import CAMPAIGN_TAG, Names

HOLDERS = ("network interface", "security group", "VPC endpoint")
"""Kinds that prevent the deletion of a network."""


def ec2(
    name: str,
    step: Step,
    operation: str,
    result: str,
    id_key: str,
    name_key: str = "",
    *,
    arn: str,
    filters: Mapping[str, str] | None = None,
    **fields: Any,
) -> ResourceKind:
    """Return a kind of EC2 whose resources of a stack are found by their tags. `filters`: name -> input."""
    if "type" in fields:
        fields.setdefault("find", by_tags(operation, result, id_key, filters or {}))
    return listed_kind(name, step, "ec2", operation, result, id_key, name_key, arn=f"{arn}/", **fields)


def by_tags(
    operation: str,
    result: str,
    id_key: str,
    input_filters: Mapping[str, str],
    alive: Mapping[str, list[str]] | None = None,
) -> Find:
    """Return a search by tags; `input_filters`: filter -> input, `alive`: a filter of states."""

    def find(account: Account, inputs: Inputs) -> list[str]:
        filters = tagged_as(inputs)
        filters += [{"Name": name, "Values": [str(inputs[key])]} for name, key in input_filters.items()]
        filters += [{"Name": name, "Values": values} for name, values in (alive or {}).items()]
        return [item[id_key] for item in every(account.client("ec2"), operation, result, Filters=filters)]

    return find


def asked_by(operation: str, result: str, id_key: str, filter: str) -> Ask:
    """Return a look-up of several ARNs by a filter on their ids."""

    def ask(account: Account, arns: Sequence[str]) -> set[str]:
        arns_by_id = {arn.rpartition("/")[2]: arn for arn in arns}
        by_id = [{"Name": filter, "Values": list(arns_by_id)}]
        items = every(account.client("ec2"), operation, result, Filters=by_id)
        return {arns_by_id[item[id_key]] for item in items if item[id_key] in arns_by_id}

    return ask


def of_campaign(names: Names) -> list[dict[str, Any]]:
    """Return EC2's filter for the campaign's tag."""
    return [{"Name": f"tag:{CAMPAIGN_TAG}", "Values": [names.campaign]}]


def in_its_vpc(account: Account, names: Names, operation: str, result: str) -> Iterator[dict[str, Any]]:
    """Yield a listing's items in the campaign's VPCs, which are found by tag, since the state may be lost."""
    client = account.client("ec2")
    vpcs = [vpc["VpcId"] for vpc in every(client, "describe_vpcs", "Vpcs", Filters=of_campaign(names))]
    if vpcs:
        yield from every(client, operation, result, Filters=[{"Name": "vpc-id", "Values": vpcs}])


def its_groups(account: Account, names: Names) -> Iterator[dict[str, Any]]:
    """Yield the security groups of the campaign and its cluster, by tag, in whatever VPC they are."""
    client, cluster = account.client("ec2"), [{"Name": f"tag:{CLUSTER_TAG}{names.cluster}", "Values": [OWNED]}]
    for filters in (of_campaign(names), cluster):
        yield from every(client, "describe_security_groups", "SecurityGroups", Filters=filters)


def put_into_vpc(name: str, item: Mapping[str, Any], names: Names) -> Remain:
    """Return the line for what somebody, or a service of AWS, put into the campaign's VPC."""
    if maker := maker_of(item, tags_of(item.get("Tags"))):
        return Remain(name, f"{maker} put it there", f"`bivouac sweep {names.campaign}` removes it", ours=True)
    return Remain(name, "someone else made it in the campaign's VPC", "its owner deletes it")


def delete_if_present(account: Account, operation: str, **arguments: Any) -> bool:
    """Call a deleting operation of EC2; return False if there was nothing to delete."""
    try:
        getattr(account.client("ec2"), operation)(**arguments)
    except ClientError as error:
        if says_missing(error):
            return False
        raise
    return True
