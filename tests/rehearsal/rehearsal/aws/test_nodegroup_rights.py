"""The dry run of CreateNodegroup: whoever may make node groups, and not launch what the template says, is refused."""

from __future__ import annotations

import itertools
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.rehearsal.acting import OPERATOR, policy
from tests.rehearsal.aws_account import make_user
from tests.rehearsal.rehearsal.aws.aws_cluster import node_role, role, site, subnets
from tests.worlds.account_site import AccountSite

__all__ = ["node_role", "site", "subnets"]

CLUSTER = "bivouac-drilled"
MARK = [{"Key": "bivouac:campaign", "Value": "drilled"}]
KINDS = ("instance", "volume", "network-interface")
POOL = "arn:aws:resource-groups:us-east-1:123456789012:group/pool"
_numbers = itertools.count()


class Maker:
    """Makes node groups of a cluster as ours, with the operator's written rights or part of them."""

    def __init__(self, site: AccountSite, vpc: str, subnet: str, node_role: str) -> None:
        self.site, self.vpc, self.subnet, self.node_role = site, vpc, subnet, node_role
        cluster = site.client("eks").describe_cluster(name=CLUSTER)["cluster"]
        self.own = cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]
        self.nodes = self.group("nodes", MARK)
        site.client("ec2").create_placement_group(
            GroupName="bivouac-drilled", TagSpecifications=[{"ResourceType": "placement-group", "Tags": MARK}]
        )

    def group(self, name: str, tags: list[dict[str, str]]) -> str:
        marks = [{"ResourceType": "security-group", "Tags": tags}] if tags else []
        made = self.site.client("ec2").create_security_group(
            GroupName=name, Description=name, VpcId=self.vpc, TagSpecifications=marks
        )
        return str(made["GroupId"])

    def reservation(self) -> str:
        """As somebody made it by hand, without a mark."""
        made = self.site.client("ec2").create_capacity_reservation(
            InstanceType="p5.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=2
        )
        return str(made["CapacityReservation"]["CapacityReservationId"])

    def template(self, **changes: Any) -> dict[str, str]:
        groups = changes.pop("groups", [self.nodes, self.own])
        kinds = changes.pop("kinds", KINDS)
        data = {
            "ImageId": "ami-12345678",
            "InstanceType": "p5.48xlarge",
            "NetworkInterfaces": [{"DeviceIndex": 0, "InterfaceType": "efa", "Groups": groups}],
            "TagSpecifications": [{"ResourceType": kind, "Tags": MARK} for kind in kinds],
            "Placement": {"GroupName": "bivouac-drilled"},
        }
        marks = [{"ResourceType": "launch-template", "Tags": MARK}]
        made = self.site.client("ec2").create_launch_template(
            LaunchTemplateName=f"drilled-{next(_numbers)}", LaunchTemplateData=data | changes, TagSpecifications=marks
        )
        return {"id": made["LaunchTemplate"]["LaunchTemplateId"], "version": "1"}

    def session(self, without: tuple[str, str] = ("", "")) -> boto3.Session:
        """`without`: the Sid of a statement, and an action that it loses."""
        sid, lost = without
        statements = [
            one | {"Action": [action for action in one["Action"] if action != lost]}
            if one["Sid"] == sid and isinstance(one["Action"], list) else one
            for name in OPERATOR for one in policy(name)["Statement"]
            if not (one["Sid"] == sid and one["Action"] == lost)
        ]  # fmt: skip
        key = make_user(self.site.world, f"maker-{next(_numbers)}", *statements)
        return boto3.Session(*key, region_name="us-east-1")

    def make(self, session: boto3.Session, template: dict[str, str], subnet: str = "") -> str:
        """The name of the group."""
        name, tags = f"drilled-{next(_numbers)}", {one["Key"]: one["Value"] for one in MARK}
        self.site.client("eks", session).create_nodegroup(
            clusterName=CLUSTER, nodegroupName=name, nodeRole=self.node_role, subnets=[subnet or self.subnet],
            scalingConfig={"minSize": 0, "maxSize": 1, "desiredSize": 0}, launchTemplate=template, tags=tags,
        )  # fmt: skip
        return name


@pytest.fixture(scope="module")
def maker(site: AccountSite, subnets: list[str]) -> Maker:
    ec2, eks = site.client("ec2"), site.client("eks")
    vpc = ec2.describe_subnets(SubnetIds=subnets)["Subnets"][0]["VpcId"]
    ec2.create_tags(Resources=subnets[:1], Tags=MARK)
    arn = role(site, "cluster", "eks.amazonaws.com", attach="AmazonEKSClusterPolicy")
    config = {"authenticationMode": "API"}
    eks.create_cluster(
        name=CLUSTER, version="1.36", roleArn=arn, resourcesVpcConfig={"subnetIds": subnets}, accessConfig=config
    )
    eks.get_waiter("cluster_active").wait(name=CLUSTER, WaiterConfig={"Delay": 0, "MaxAttempts": 200})
    # The operator lends roles of ours only.
    nodes = role(site, "bivouac-drilled-node", "ec2.amazonaws.com", attach="AmazonEKSWorkerNodePolicy")
    return Maker(site, vpc, subnets[0], nodes)


def target(**one: str) -> dict[str, Any]:
    return {"CapacityReservationSpecification": {"CapacityReservationTarget": one}}


def test_the_operator_makes_groups_in_the_clusters_security_group_and_others_capacity(
    maker: Maker,
) -> None:
    operator = maker.session()
    maker.make(operator, maker.template())
    maker.make(operator, maker.template(**target(CapacityReservationId=maker.reservation())))
    maker.make(operator, maker.template(**target(CapacityReservationResourceGroupArn=POOL)))
    maker.make(operator, maker.template(groups=[]))


def refused(maker: Maker, session: boto3.Session, template: dict[str, str], subnet: str = "") -> str:
    with pytest.raises(ClientError) as caught:
        maker.make(session, template, subnet)
    error = caught.value.response["Error"]
    assert error["Code"] == "InvalidRequestException", error
    assert error["Message"].startswith("You are not authorized to launch instances with this launch template"), error
    return str(error["Message"])


@pytest.mark.parametrize(
    ("sid", "changes", "about"),
    [
        ("ClusterGroups", {}, "security-group/"),
        ("BootFromImages", {}, "image/ami-12345678"),
        ("LaunchIntoReservations", {"CapacityReservationId": ""}, "capacity-reservation/cr-"),
        ("LaunchIntoReservations", {"CapacityReservationResourceGroupArn": POOL}, POOL),
        ("MakeMarked", {}, "instance/*"),
        ("ChangeACampaigns", {}, "placement-group/bivouac-drilled"),
    ],
)
def test_each_part_of_a_launch_needs_its_own_statement(
    maker: Maker, sid: str, changes: dict[str, str], about: str
) -> None:
    if "CapacityReservationId" in changes:
        changes = {"CapacityReservationId": maker.reservation()}
    template = maker.template(**(target(**changes) if changes else {}))
    assert about in refused(maker, maker.session((sid, "ec2:RunInstances")), template)


def test_the_operator_launches_nothing_unmarked_and_nothing_into_anothers_network(
    maker: Maker, subnets: list[str]
) -> None:
    operator = maker.session()
    assert "volume/*" in refused(maker, operator, maker.template(kinds=("instance", "network-interface")))
    assert "network-interface/*" in refused(maker, operator, maker.template(kinds=("instance", "volume")))
    foreign = maker.group("foreign", [])
    assert foreign in refused(maker, operator, maker.template(groups=[maker.nodes, foreign]))
    assert subnets[1] in refused(maker, operator, maker.template(), subnets[1])


def test_a_new_version_of_the_template_is_tried_as_well(maker: Maker) -> None:
    template = maker.template()
    name = maker.make(maker.session(), template)
    eks = maker.site.client("eks", maker.session(("ClusterGroups", "ec2:RunInstances")))
    maker.site.client("eks").get_waiter("nodegroup_active").wait(
        clusterName=CLUSTER, nodegroupName=name, WaiterConfig={"Delay": 0, "MaxAttempts": 200}
    )
    with pytest.raises(ClientError, match="not authorized to launch"):
        eks.update_nodegroup_version(clusterName=CLUSTER, nodegroupName=name, launchTemplate=template)
