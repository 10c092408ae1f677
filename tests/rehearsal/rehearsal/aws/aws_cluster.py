"""A cluster at the emulated AWS with its network, roles and launch template, for the tests of what stands on it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.worlds.account_site import AccountSite, FakeMachine, fake_site

CLUSTER_ADMIN = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountSite]:
    with fake_site(tmp_path_factory.mktemp("aws")) as made:
        yield made


def trust(*services: str) -> str:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": list(services)},
        "Action": ["sts:AssumeRole", "sts:TagSession"],
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def role(
    site: AccountSite, name: str, *services: str, policy: dict[str, Any] | None = None, attach: str | None = None
) -> str:
    iam = site.client("iam")
    arn = str(iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust(*services))["Role"]["Arn"])
    if policy:
        document = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
        iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=document)
    if attach:
        iam.attach_role_policy(RoleName=name, PolicyArn=f"arn:aws:iam::aws:policy/{attach}")
    return arn


@pytest.fixture(scope="module")
def subnets(site: AccountSite) -> list[str]:
    ec2 = site.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.42.0.0/16")["Vpc"]["VpcId"]
    where = [("10.42.0.0/24", "us-east-1a"), ("10.42.1.0/24", "us-east-1b")]
    made = [ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=zone)["Subnet"] for cidr, zone in where]
    return [one["SubnetId"] for one in made]


@pytest.fixture(scope="module")
def vpc(site: AccountSite, subnets: list[str]) -> str:
    return str(site.client("ec2").describe_subnets(SubnetIds=subnets)["Subnets"][0]["VpcId"])


@pytest.fixture(scope="module")
def node_role(site: AccountSite) -> str:
    return role(site, "nodes", "ec2.amazonaws.com", attach="AmazonEKSWorkerNodePolicy")


@pytest.fixture(scope="module")
def cluster(site: AccountSite, subnets: list[str]) -> str:
    arn = role(site, "cluster", "eks.amazonaws.com", attach="AmazonEKSClusterPolicy")
    eks = site.client("eks")
    eks.create_cluster(
        name="camp",
        version="1.36",
        roleArn=arn,
        resourcesVpcConfig={"subnetIds": subnets},
        accessConfig={"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": True},
        logging={"clusterLogging": [{"types": ["audit"], "enabled": True}]},
        tags={"bivouac:campaign": "camp"},
    )
    eks.get_waiter("cluster_active").wait(name="camp", WaiterConfig={"Delay": 0, "MaxAttempts": 200})
    return "camp"


@pytest.fixture(scope="module")
def template(site: AccountSite, cluster: str) -> dict[str, str]:
    ec2 = site.client("ec2")
    nics = [{"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "interface"}] + [
        {"DeviceIndex": int(card == 0), "NetworkCardIndex": card, "InterfaceType": "efa-only"} for card in range(32)
    ]
    tags = [{"ResourceType": kind, "Tags": [{"Key": "bivouac:campaign", "Value": "camp"}]} for kind in KINDS]
    data = {
        "ImageId": "ami-12345678",
        "InstanceType": "p5.48xlarge",
        "UserData": base64.b64encode(b"MIME-Version: 1.0\n").decode(),
        "NetworkInterfaces": nics,
        "TagSpecifications": tags,
    }
    made = ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)["LaunchTemplate"]
    return {"id": made["LaunchTemplateId"], "version": "1"}


KINDS = ("instance", "volume", "network-interface")


def create_group(site: AccountSite, name: str, node_role: str, subnets: list[str], **more: Any) -> dict[str, Any]:
    scaling = more.pop("scalingConfig", {"minSize": 0, "maxSize": 4, "desiredSize": 1})
    call = {"clusterName": "camp", "nodegroupName": name, "nodeRole": node_role, "subnets": subnets[:1]}
    return dict(site.client("eks").create_nodegroup(**call, scalingConfig=scaling, **more)["nodegroup"])


def describe(site: AccountSite, name: str) -> dict[str, Any]:
    return dict(site.client("eks").describe_nodegroup(clusterName="camp", nodegroupName=name)["nodegroup"])


def of_group(site: AccountSite, name: str) -> list[FakeMachine]:
    return [one for one in site.alive() if one.settings["tags"].get("eks:nodegroup-name") == name]


def delete_group(site: AccountSite, name: str) -> None:
    eks = site.client("eks")
    eks.delete_nodegroup(clusterName="camp", nodegroupName=name)
    eks.get_waiter("nodegroup_deleted").wait(
        clusterName="camp", nodegroupName=name, WaiterConfig={"Delay": 0, "MaxAttempts": 500}
    )


def assume(site: AccountSite, arn: str, name: str) -> boto3.Session:
    agent = boto3.Session(*site.world.agent_key, region_name="us-east-1")
    credentials = site.client("sts", agent).assume_role(RoleArn=arn, RoleSessionName=name)["Credentials"]
    keys = (credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["SessionToken"])
    return boto3.Session(*keys, region_name="us-east-1")


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def holds(shown: dict[str, Any], **wanted: Any) -> bool:
    """Whether these members are shown so; None: not at all."""
    return {key: shown.get(key) for key in wanted} == wanted
