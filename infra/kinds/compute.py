"""Auto Scaling, instances, images, disks, launch templates and reservations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from infra.aws.account import Account, every
from infra.kinds.ec2 import ec2, in_its_vpc, of_campaign
from infra.kinds.kind import Checkpoints, Inputs, Remain, ResourceKind, Step, no_price
from infra.kinds.listed import arn_of, call, listed_kind, state_of
from infra.kinds.thing import Thing, tags_of, thing
from infra.plan.catalogue import instance_types, service_prices
from infra.spec.names import CAMPAIGN_TAG, Names

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def _instances(account: Account) -> Iterator[Thing]:
    for reservation in every(account.client("ec2"), "describe_instances", "Reservations"):
        for item in reservation["Instances"]:
            if state_of(item) != "terminated":
                yield replace(thing(item, item["InstanceId"]), traits=item)


def _instances_left(account: Account, names: Names) -> Iterator[Remain]:
    by_tag = every(account.client("ec2"), "describe_instances", "Reservations", Filters=of_campaign(names))
    reservations = [*by_tag, *in_its_vpc(account, names, "describe_instances", "Reservations")]
    for item in {
        item["InstanceId"]: item for reservation in reservations for item in reservation["Instances"]
    }.values():
        state, is_ours = item["State"]["Name"], tags_of(item.get("Tags")).get(CAMPAIGN_TAG) == names.campaign
        if state != "terminated":
            reason = f"{item['InstanceType']}, {state}" + ("" if is_ours else ", not the campaign's but in its VPC")
            do = (
                f"`aws ec2 terminate-instances --instance-ids {item['InstanceId']}`" if is_ours else "its owner ends it"
            )
            yield Remain(f"instance {item['InstanceId']}", reason, do, is_ours)


def _of_type(item: Mapping[str, Any]) -> Decimal | None:
    name = str(item.get("InstanceType"))
    system = service_prices().system_node_usd_per_hour.get(name)
    prices = {item.name: item.price_usd_per_hour for item in instance_types()}
    return system if system is not None else prices.get(name)


def _instance(item: Mapping[str, Any]) -> Decimal | None:
    return _of_type(item) if state_of(item) in ("pending", "running") else Decimal(0)


def _reservation(item: Mapping[str, Any]) -> Decimal | None:
    """Return the full price of a reservation, used or not; instances in it are not billed again."""
    price = _of_type(item)
    return None if price is None else price * int(item.get("TotalInstanceCount") or 1)


def _placement_groups(account: Account, inputs: Inputs) -> list[str]:
    filters = [{"Name": "group-name", "Values": [inputs["name"]]}]
    groups = every(account.client("ec2"), "describe_placement_groups", "PlacementGroups", Filters=filters)
    return [group["GroupName"] for group in groups if group["State"] != "deleted"]


KINDS = (
    listed_kind(
        "Auto Scaling group", Step.SCALERS, "autoscaling",
        "describe_auto_scaling_groups", "AutoScalingGroups", *["AutoScalingGroupName"] * 2, arn="",
        remove=call("autoscaling", "delete_auto_scaling_group", "AutoScalingGroupName", ForceDelete=True),
        eks_names=("node group", "eks-", rf"-{_UUID}"), checkpoints=Checkpoints.FREE,
    ),
    listed_kind(
        "launch configuration", Step.SCALERS, "autoscaling",
        "describe_launch_configurations", "LaunchConfigurations", *["LaunchConfigurationName"] * 2, arn="",
        remove="delete_launch_configuration",
    ),
    ec2(
        "spot request", Step.SCALERS,
        "describe_spot_instance_requests", "SpotInstanceRequests", "SpotInstanceRequestId",
        arn="spot-instances-request", ended_states=("closed", "cancelled", "failed"),
        remove=call("ec2", "cancel_spot_instance_requests", "SpotInstanceRequestIds"), checkpoints=Checkpoints.FREE,
    ),
    ResourceKind(
        "instance", "ec2", arn_of("ec2", "instance/"), list=_instances,
        step=Step.MACHINES, remove=call("ec2", "terminate_instances", "InstanceIds"),
        remains=_instances_left, price=_instance, checkpoints=Checkpoints.FREE,
    ),
    ec2(
        "image", Step.IMAGES, "describe_images", "Images", "ImageId", "Name", request={"Owners": ["self"]},
        arn="image", ended_states=("deregistered",), remove="deregister_image", price=no_price,
    ),
    ec2(
        "snapshot", Step.SNAPSHOTS, "describe_snapshots", "Snapshots", "SnapshotId", request={"OwnerIds": ["self"]},
        arn="snapshot", remove="delete_snapshot", price=no_price, checkpoints=Checkpoints.HOLDS,
    ),
    ec2(
        "volume", Step.VOLUMES, "describe_volumes", "Volumes", "VolumeId",
        arn="volume", ended_states=("deleted",), remove="delete_volume", price=no_price, checkpoints=Checkpoints.HOLDS,
    ),
    ec2(
        "launch template", Step.LAUNCH_SETTINGS,
        "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", "LaunchTemplateName",
        arn="launch-template", remove="delete_launch_template",
        type="aws:ec2/launchTemplate:LaunchTemplate", filters={"launch-template-name": "name"},
    ),
    ec2(
        "placement group", Step.LAUNCH_SETTINGS, "describe_placement_groups", "PlacementGroups", *["GroupName"] * 2,
        arn="placement-group", ended_states=("deleted",), remove="delete_placement_group",
        type="aws:ec2/placementGroup:PlacementGroup", find=_placement_groups,
    ),
    ec2(
        "capacity reservation", Step.LAUNCH_SETTINGS,
        "describe_capacity_reservations", "CapacityReservations", "CapacityReservationId",
        arn="capacity-reservation", ended_states=("expired", "cancelled", "failed", "payment-failed", "unsupported"),
        remove="cancel_capacity_reservation", price=_reservation,
    ),
    ec2(
        "key pair", Step.LAUNCH_SETTINGS, "describe_key_pairs", "KeyPairs", *["KeyName"] * 2,
        arn="key-pair", remove="delete_key_pair",
    ),
)  # fmt: skip
