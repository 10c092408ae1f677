"""The checks of CreateNodegroup and the changes of UpdateNodegroupConfig, with EKS's messages."""

from __future__ import annotations

import json
from typing import Any

from infra.rehearsal.aws.eks.clusters import Cluster, find_subnets
from infra.rehearsal.aws.iam.access import role_trusts
from infra.rehearsal.aws.operations import AwsError, Parameters
from infra.rehearsal.aws.world import World

FORBIDDEN = ("IamInstanceProfile", "InstanceInitiatedShutdownBehavior", "HibernationOptions")


def invalid(message: str) -> AwsError:
    return AwsError("InvalidParameterException", message)


def check_sizes(scaling: dict[str, int]) -> None:
    smallest, largest, target = scaling["minSize"], scaling["maxSize"], scaling["desiredSize"]
    if largest < 1:
        raise invalid("Minimum capacity 1 is required for maxSize")
    if smallest > largest:
        raise invalid(f"Minimum capacity {smallest} can't be greater than maximum size {largest}")
    if target < smallest:
        raise invalid(f"Minimum capacity {smallest} can't be greater than desired size {target}")
    if target > largest:
        raise invalid(f"Desired capacity {target} can't be greater than max size {largest}")


def mark(document: dict[str, Any], labels: dict[str, Any], taints: dict[str, Any]) -> None:
    """Apply the labels and taints of UpdateNodegroupConfig."""
    document["labels"].update(labels.get("addOrUpdateLabels") or {})
    for key in labels.get("removeLabels") or []:
        document["labels"].pop(key, None)
    taints_changed = [*(taints.get("addOrUpdateTaints") or []), *(taints.get("removeTaints") or [])]
    places = {(taint["key"], taint["effect"]) for taint in taints_changed}
    kept_taints = [taint for taint in document["taints"] if (taint["key"], taint["effect"]) not in places]
    document["taints"] = [*kept_taints, *(taints.get("addOrUpdateTaints") or [])]


def check(world: World, cluster: Cluster, params: Parameters, template: dict[str, Any] | None) -> None:
    """Raise EKS's errors; `template` is the LaunchTemplateData."""
    if params["nodegroupName"] in cluster.nodegroups:
        message = f"NodeGroup already exists with name {params['nodegroupName']} and cluster name {cluster.name}"
        raise AwsError("ResourceInUseException", message)
    if not role_trusts(world, params["nodeRole"], "ec2.amazonaws.com"):
        raise invalid(f"The role {params['nodeRole']} does not exist or cannot be assumed by ec2.amazonaws.com")
    subnets = find_subnets(world, params["subnets"])
    if params.get("capacityType") == "CAPACITY_BLOCK":
        _check_block(template, subnets)
    if template is not None:
        _check_template(params, template)


def _check_template(params: Parameters, template: dict[str, Any]) -> None:
    if params.get("diskSize"):
        raise invalid("Disk size must be specified within the launch template.")
    if params.get("remoteAccess"):
        raise invalid("Remote access configuration cannot be specified with a launch template.")
    if params.get("instanceTypes") and template.get("InstanceType"):
        raise invalid("Instance types in launch template and in the request: only one of them may be given")
    if forbidden := [key for key in FORBIDDEN if template.get(key)]:
        raise invalid(f"Launch template must not contain {', '.join(forbidden)}")
    nics = template.get("NetworkInterfaces") or []
    if any(nic.get("SubnetId") for nic in nics):
        raise invalid("Subnets must not be specified in launch template.")
    if nics and template.get("SecurityGroupIds"):
        raise invalid("Security groups stand either on the launch template or on its network interfaces, not on both")
    if template.get("ImageId") and (params.get("amiType") not in (None, "CUSTOM") or params.get("releaseVersion")):
        raise invalid("You cannot specify an image id in the launch template together with amiType or releaseVersion")
    if (template.get("InstanceMarketOptions") or {}).get("MarketType") == "spot":
        raise invalid("Remove the spot market options of the launch template and use capacityType SPOT")


def _check_block(template: dict[str, Any] | None, subnets: list[Any]) -> None:
    market = ((template or {}).get("InstanceMarketOptions") or {}).get("MarketType")
    if market != "capacity-block" or not block_id(template or {}) or not template:
        raise invalid("CAPACITY_BLOCK needs a launch template with MarketType capacity-block and a reservation id")
    if not template.get("InstanceType"):
        raise invalid("CAPACITY_BLOCK needs the instance type in the launch template")
    if len({subnet.availability_zone for subnet in subnets}) > 1:
        raise invalid("CAPACITY_BLOCK needs subnets in the Availability Zone of the block only")


def block_id(template: dict[str, Any]) -> str:
    """Return the reservation that a LaunchTemplateData targets, or an empty string."""
    target = (template.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    return str(target.get("CapacityReservationId") or "")


CHANGES = {
    "scalingConfig": {"minSize": "MinSize", "maxSize": "MaxSize", "desiredSize": "DesiredSize"},
    "labels": {"addOrUpdateLabels": "LabelsToAdd", "removeLabels": "LabelsToRemove"},
    "taints": {"addOrUpdateTaints": "TaintsToAdd", "removeTaints": "TaintsToRemove"},
    "updateConfig": {"maxUnavailable": "MaxUnavailable", "maxUnavailablePercentage": "MaxUnavailablePercentage"},
    "nodeRepairConfig": {"enabled": "NodeRepairEnabled"},
}
"""Parameter of an update -> its parts -> UpdateParamType."""


def update_parameters(params: dict[str, Any]) -> list[dict[str, str]]:
    """Return the params of an Update: each requested part of the configuration."""
    return [
        {"type": kind, "value": json.dumps(params[name][part])}
        for name, parts in CHANGES.items()
        for part, kind in parts.items()
        if part in (params.get(name) or {})
    ]
