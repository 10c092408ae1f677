"""What AWS says of a resource whose coming to life its engine did not see: it comes, it is there, or it has failed.

An engine that is ended gently stops waiting and notes so; that is no failure of what it waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, says_missing


class Life(StrEnum):
    COMING = "coming"
    THERE = "there"
    FAILED = "failed"
    """Or gone, or of a kind that nothing is known about."""


_COMING = frozenset({"CREATING", "UPDATING", "pending", "PENDING"})
_THERE = frozenset({"ACTIVE", "AVAILABLE", "available"})


def life(account: Account, resource: Mapping[str, Any]) -> Life:
    """Of a resource as Pulumi's state holds it, with type and id."""
    ask = _STATUS.get(str(resource["type"]))
    if ask is None or not resource.get("id"):
        return Life.FAILED
    try:
        status = ask(account, str(resource["id"]))
    except ClientError as error:
        if says_missing(error):
            return Life.FAILED
        raise
    if status in _COMING:
        return Life.COMING
    return Life.THERE if status in _THERE else Life.FAILED


def _eks(operation: str, result: str, *parameters: str) -> Callable[[Account, str], str]:
    def status(account: Account, id: str) -> str:
        asked = dict(zip(parameters, id.split(":"), strict=True))
        return str(getattr(account.client("eks"), operation)(**asked)[result]["status"])

    return status


def _fsx(operation: str, key: str, result: str) -> Callable[[Account, str], str]:
    def status(account: Account, id: str) -> str:
        found = getattr(account.client("fsx"), operation)(**{key: [id]})[result]
        return str(found[0]["Lifecycle"]) if found else ""

    return status


def _gateway(account: Account, id: str) -> str:
    found = account.client("ec2").describe_nat_gateways(NatGatewayIds=[id])["NatGateways"]
    return str(found[0]["State"]) if found else ""


_STATUS: dict[str, Callable[[Account, str], str]] = {
    "aws:eks/cluster:Cluster": _eks("describe_cluster", "cluster", "name"),
    "aws:eks/nodeGroup:NodeGroup": _eks("describe_nodegroup", "nodegroup", "clusterName", "nodegroupName"),
    "aws:eks/addon:Addon": _eks("describe_addon", "addon", "clusterName", "addonName"),
    "aws:fsx/lustreFileSystem:LustreFileSystem": _fsx("describe_file_systems", "FileSystemIds", "FileSystems"),
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": _fsx(
        "describe_data_repository_associations", "AssociationIds", "Associations"
    ),
    "aws:ec2/natGateway:NatGateway": _gateway,
}
"""Type -> the status that AWS gives; the kinds that take their time."""
