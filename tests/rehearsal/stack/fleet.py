"""GPU node groups of any type and purchase option, through the real engine against the emulated AWS, several at a time.

Each case is the product's own `GpuNodes` component: launch template, node group, and placement group or reservation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pulumi
import pulumi_aws as aws
import pytest

from infra.plan.catalogue import InstanceType, instance_types
from infra.spec.campaign import Capacity, Spec
from infra.spec.names import Names
from infra.stack.cluster.nodes import GpuNodes, efa_layout
from infra.stack.tags import tags
from tests.example import DEADLINE, example_spec
from tests.worlds.account_site import AccountSite, fake_site, resize, until
from tests.worlds.pulumi_project import PulumiProject, counts

ZONE = "us-east-1a"
ARN = "arn:aws:resource-groups:us-east-1:123456789012:group/{}"
HOWS: tuple[tuple[Capacity, str], ...] = (
    (Capacity.ON_DEMAND, ""),
    (Capacity.SPOT, ""),
    (Capacity.RESERVATION, "id"),
    (Capacity.RESERVATION, "group"),
    (Capacity.RESERVATION, "open"),
    (Capacity.CAPACITY_BLOCK, "id"),
)
"""(capacity, how the reservation is named)."""


@dataclass
class Case:
    item: InstanceType
    capacity: Capacity
    named: str
    number: int
    short_s: float = 0.0
    """Before its first node comes, EC2 has no capacity for so long."""
    reservation: str | None = None
    asked: str | None = None
    """What the spec names: the reservation, a group, or `open`."""
    shown: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.item.name} {self.capacity}{' by ' + self.named if self.named else ''}"

    @property
    def campaign(self) -> str:
        return f"fleet-{self.number}"

    def spec(self, count: int = 2) -> Spec:
        nodes = {"count": count, "instance_type": self.item.name, "capacity": self.capacity.value}
        return example_spec(campaign=self.campaign, nodes={**nodes, "reservation_id": self.asked})


def all_cases() -> list[Case]:
    sold = [
        (item, capacity, named)
        for item in instance_types()
        for capacity, named in HOWS
        if capacity is not Capacity.CAPACITY_BLOCK or item.capacity_block
    ]
    return [Case(*one, number) for number, one in enumerate(sold)]


class Fleet:
    """One emulated account with a cluster, a network, and an engine."""

    def __init__(self, site: AccountSite, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        key, secret = site.world.operator_key
        environment = {
            "AWS_ENDPOINT_URL": site.world.endpoint_url, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret,
            "HOME": str(folder),
        }  # fmt: skip
        self.engine = PulumiProject(folder, environment, monkeypatch)
        self.clients = {name: site.client(name) for name in ("ec2", "eks", "iam", "autoscaling")}
        ec2 = self.clients["ec2"]
        vpc = ec2.create_vpc(CidrBlock="10.42.0.0/16")["Vpc"]["VpcId"]
        self.subnets = [
            ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.42.{64 * i}.0/18", AvailabilityZone=f"us-east-1{zone}")[
                "Subnet"
            ]["SubnetId"]
            for i, zone in enumerate("ab")
        ]
        self.group = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
        self.role = self._role("nodes", "ec2.amazonaws.com")
        self.cluster = self._cluster()

    def _role(self, name: str, service: str) -> str:
        allow = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        made = self.clients["iam"].create_role(RoleName=name, AssumeRolePolicyDocument=trust)
        return str(made["Role"]["Arn"])

    def _cluster(self) -> Any:
        eks = self.clients["eks"]
        eks.create_cluster(
            name="camp", version="1.36", roleArn=self._role("cluster", "eks.amazonaws.com"),
            resourcesVpcConfig={"subnetIds": self.subnets}, accessConfig={"authenticationMode": "API"},
        )  # fmt: skip
        eks.get_waiter("cluster_active").wait(name="camp", WaiterConfig={"Delay": 0, "MaxAttempts": 400})
        return eks.describe_cluster(name="camp")["cluster"]

    def ask(self, route: str, **asked: Any) -> dict[str, Any]:
        with urlopen(f"{self.site.world.endpoint_url}/_site/{route}", data=json.dumps(asked).encode()) as answer:
            return dict(json.loads(answer.read()))

    def reserve(self, case: Case) -> None:
        """Make what the case's nodes are bought with, outside of the stack."""
        ec2, name = self.clients["ec2"], case.item.name
        if case.capacity is Capacity.CAPACITY_BLOCK:
            self.ask("blocks", start_in_s=0)
            offered = ec2.describe_capacity_block_offerings(
                InstanceType=name, InstanceCount=1, CapacityDurationHours=24
            )["CapacityBlockOfferings"]
            chosen = next(one for one in offered if one["AvailabilityZone"] == ZONE)
            made = ec2.purchase_capacity_block(
                CapacityBlockOfferingId=chosen["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
            )
        elif case.capacity is Capacity.RESERVATION:
            match = "open" if case.named == "open" else "targeted"
            made = ec2.create_capacity_reservation(
                InstanceType=name, InstancePlatform="Linux/UNIX", AvailabilityZone=ZONE, InstanceCount=1,
                InstanceMatchCriteria=match,
            )  # fmt: skip
        else:
            return
        case.reservation = case.asked = str(made["CapacityReservation"]["CapacityReservationId"])
        if case.named == "group":
            case.asked = ARN.format(case.campaign)
            groups = self.ask("blocks")["groups"]
            self.ask("blocks", groups={**groups, case.asked: [case.reservation]})
        elif case.named == "open":
            case.asked = "open"

    def program(self, cases: Sequence[Case], count: int) -> Callable[[], None]:
        cluster: Any = SimpleNamespace(
            eks=SimpleNamespace(name=self.cluster["name"]), endpoint=self.cluster["endpoint"],
            authority=self.cluster["certificateAuthority"]["data"],
        )  # fmt: skip
        groups = [self.group, self.cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]]

        def run() -> None:
            provider = aws.Provider("aws", region="us-east-1")
            for case in cases:
                # A type of its own for each: the URN of a child tells its parents by their types alone.
                over = pulumi.ComponentResource(f"bivouac:fleet:Case{case.number}", case.campaign)
                opts = pulumi.ResourceOptions(parent=over, providers=[provider])
                spec, subnet = case.spec(count), self.subnets[0]
                GpuNodes(spec, cluster, tags(spec, DEADLINE), self.role, subnet, groups, [], opts=opts)

        return run

    def check(self, case: Case, count: int) -> None:
        """What EKS and EC2 hold, read back by a client of our own."""
        names, ec2 = Names(case.campaign), self.clients["ec2"]
        group = self.clients["eks"].describe_nodegroup(clusterName="camp", nodegroupName=names.gpu_group)["nodegroup"]
        kinds = {Capacity.SPOT: "SPOT", Capacity.CAPACITY_BLOCK: "CAPACITY_BLOCK"}
        assert group["status"] == "ACTIVE" and group["capacityType"] == kinds.get(case.capacity, "ON_DEMAND")
        assert group["scalingConfig"] == {"minSize": 0, "maxSize": count + 1, "desiredSize": 0}
        (version,) = ec2.describe_launch_template_versions(
            LaunchTemplateName=names.gpu_group, Versions=[group["launchTemplate"]["version"]]
        )["LaunchTemplateVersions"]
        data = version["LaunchTemplateData"]
        nics = [(n["NetworkCardIndex"], n["DeviceIndex"], n["InterfaceType"]) for n in data["NetworkInterfaces"]]
        assert nics == [(one.card, one.device, one.kind) for one in efa_layout(case.item)]
        placed = case.capacity in (Capacity.ON_DEMAND, Capacity.SPOT)
        assert ("Placement" in data) == placed
        assert bool(self.placement_groups(names)) == placed

    def placement_groups(self, names: Names) -> list[Any]:
        groups = self.clients["ec2"].describe_placement_groups()["PlacementGroups"]
        return [one for one in groups if one["GroupName"] == names.placement_group]

    def launch(self, case: Case) -> dict[str, Any]:
        """One node, as preflight asks for it: EC2 takes the whole template or refuses it."""
        if case.short_s:
            pattern = Names(case.campaign).gpu_group
            self.ask("capacity", add=[{"node_group": pattern, "seconds": case.short_s}])
        self.resize(case, 1)
        return dict(until(lambda: next(iter(self.running(case)), None)))

    def resize(self, case: Case, desired: int) -> None:
        group = {"clusterName": "camp", "nodegroupName": Names(case.campaign).gpu_group}
        resize(self.clients["eks"], **group, scalingConfig={"desiredSize": desired})

    def running(self, case: Case) -> list[dict[str, Any]]:
        mine = [{"Name": "tag:eks:nodegroup-name", "Values": [Names(case.campaign).gpu_group]}]
        # moto shows a new instance as running for a moment before the emulation takes it in hand: ask for the machine.
        machines = set(self.site.world.machines)
        instances = [instance for group in self.clients["ec2"].describe_instances(Filters=mine)["Reservations"]
                 for instance in group["Instances"]]  # fmt: skip
        return [one for one in instances if one["State"]["Name"] == "running" and one["InstanceId"] in machines]

    def check_node(self, case: Case, node: dict[str, Any]) -> None:
        kinds = sorted(interface["InterfaceType"] for interface in node["NetworkInterfaces"])
        assert kinds == sorted(one.kind for one in efa_layout(case.item))
        assert node["InstanceType"] == case.item.name and node["Placement"]["AvailabilityZone"] == ZONE
        lifecycle = {Capacity.SPOT: "spot", Capacity.CAPACITY_BLOCK: "capacity-block"}.get(case.capacity)
        assert node.get("InstanceLifecycle") == lifecycle
        assert all(interface["Groups"] and len(interface["Groups"]) == 2 for interface in node["NetworkInterfaces"])
        if case.reservation is not None:
            ids = [case.reservation]
            (held,) = self.clients["ec2"].describe_capacity_reservations(CapacityReservationIds=ids)[
                "CapacityReservations"
            ]
            assert held["AvailableInstanceCount"] == 0, "the node is not in its reservation"

    def gone(self, case: Case) -> list[str]:
        """What is left of a case."""
        names, ec2 = Names(case.campaign), self.clients["ec2"]
        left = [nodegroup for nodegroup in self.clients["eks"].list_nodegroups(clusterName="camp")["nodegroups"]
                if nodegroup == names.gpu_group]  # fmt: skip
        templates = ec2.describe_launch_templates()["LaunchTemplates"]
        left += [
            template["LaunchTemplateName"]
            for template in templates
            if template["LaunchTemplateName"] == names.gpu_group
        ]
        left += [group["GroupName"] for group in self.placement_groups(names)]
        return left + [one["InstanceId"] for one in self.running(case)]


def life(fleet: Fleet, cases: Sequence[Case], failed: Callable[[Case, AssertionError], None]) -> dict[str, int]:
    """Create, read, launch one node each, change, destroy; returns the engine's counts of each step."""

    def each(step: Callable[[Case], None]) -> None:
        for case in cases:
            try:
                step(case)
            except AssertionError as error:
                failed(case, error)

    for case in cases:
        fleet.reserve(case)
    told = {f"up {key}": value for key, value in counts(fleet.engine.stack(fleet.program(cases, 2)).up()).items()}
    each(lambda case: fleet.check(case, 2))
    stack = fleet.engine.stack(fleet.program(cases, 5))
    told |= {f"refresh {key}": value for key, value in counts(stack.refresh()).items()}
    each(lambda case: fleet.check_node(case, fleet.launch(case)))
    each(lambda case: fleet.resize(case, 0))
    each(lambda case: until(lambda: not fleet.running(case)) and None)
    told |= {f"change {key}": value for key, value in counts(stack.up()).items()}
    each(lambda case: fleet.check(case, 5))
    stack.destroy()

    def empty(case: Case) -> None:
        assert not (left := fleet.gone(case)), f"left behind: {left}"

    each(empty)
    return told


@contextmanager
def fleet_in(folder: Path) -> Iterator[Fleet]:
    """An emulated account whose environment this process takes on, for as long as the block runs."""
    before = dict(os.environ)
    try:
        with fake_site(folder / "site") as site, pytest.MonkeyPatch.context() as patch:
            yield Fleet(site, folder, patch)
    finally:
        os.environ.clear()
        os.environ.update(before)
