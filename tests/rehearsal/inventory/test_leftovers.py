"""What keeps a teardown from its end is named with its holder, and with what to do about it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign.teardown import holding, remains
from infra.kinds import Remain
from infra.rehearsal.aws.world import World
from infra.spec.names import CAMPAIGN_TAG, Names
from tests.rehearsal.aws_account import Account, code_of, launch, make_user, pitch_lustre, signed_in, state_of, until

NAMES = Names("stuck")
TAGS = [{"Key": CAMPAIGN_TAG, "Value": NAMES.campaign}]


def tagged(kind: str) -> dict[str, Any]:
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": TAGS}]}


@pytest.fixture(scope="module")
def vpc(aws: Account) -> SimpleNamespace:
    """The campaign's VPC with one subnet and one group."""
    ec2 = aws.ec2
    vpc = ec2.create_vpc(CidrBlock="10.70.0.0/16", **tagged("vpc"))["Vpc"]["VpcId"]
    place = {"VpcId": vpc, "CidrBlock": "10.70.1.0/24", "AvailabilityZone": "us-east-1a"}
    subnet = ec2.create_subnet(**place, **tagged("subnet"))["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="nodes", Description="n", VpcId=vpc, **tagged("security-group"))
    rule = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 1023, "UserIdGroupPairs": [{"GroupId": group["GroupId"]}]}
    ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[rule])
    return SimpleNamespace(vpc=vpc, subnet=subnet, group=group["GroupId"])


@pytest.fixture
def seen(world: World, vpc: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    def look(key: tuple[str, str] = world.operator_key) -> tuple[Remain, ...]:
        return remains(signed_in(monkeypatch, world, key), NAMES)

    return look


def ask(world: World, route: str, **asked: Any) -> Any:
    with urllib.request.urlopen(f"{world.endpoint_url}/_site/{route}", data=json.dumps(asked).encode()) as answer:
        return json.loads(answer.read())


@pytest.fixture
def troubles(world: World) -> Iterator[Any]:
    yield lambda **rule: ask(world, "troubles", add=[rule])
    ask(world, "troubles", clear=True)


@pytest.mark.parametrize(
    ("description", "why", "do", "ours"),
    [
        ("ELB app/shop/50dc", "of the load balancer app/shop/50dc", "the owner of that load balancer", False),
        ("aws-K8S-i-0123456789abcdef0", "left by the cluster's network plugin", "`bivouac sweep stuck`", True),
        ("someone's tunnel", "someone's tunnel", "aws ec2 delete-network-interface", False),
        ("Interface for NAT Gateway nat-1", "of the NAT gateway", "it goes with that", True),
    ],
)  # fmt: skip
def test_an_interface_in_the_vpc_is_named_with_who_made_it(
    aws: Account, vpc: SimpleNamespace, seen: Any, description: str, why: str, do: str, ours: bool
) -> None:
    interface = aws.ec2.create_network_interface(SubnetId=vpc.subnet, Description=description)["NetworkInterface"]
    rows = [row for row in seen() if interface["NetworkInterfaceId"] in row.what]
    aws.ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
    assert len(rows) == 1 and vpc.subnet in rows[0].what
    assert why in rows[0].why and do in rows[0].do and rows[0].ours is ours


def test_a_group_of_someone_else_that_names_ours_is_named_with_its_rule_and_its_place(
    aws: Account, vpc: SimpleNamespace, seen: Any
) -> None:
    other = aws.ec2.create_security_group(GroupName="shop", Description="s", VpcId=vpc.vpc)["GroupId"]
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": vpc.group}]}
    aws.ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=[rule])
    rows = seen()
    assert code_of(lambda: aws.ec2.delete_security_group(GroupId=vpc.group)) == "DependencyViolation"
    aws.ec2.delete_security_group(GroupId=other)
    texts = [str(row) for row in rows]
    assert any(f"security group {vpc.group} (nodes) is left: a rule of {other} (shop) names it" in t for t in texts)
    assert any(f"security group {other} (shop)" in t and "someone else made it" in t for t in texts)
    assert str(holding("aws:ec2/securityGroup:SecurityGroup", rows)).startswith("security group")
    assert holding("aws:eks/nodeGroup:NodeGroup", rows) is None, "a group of rules does not hold a node group"


@pytest.mark.parametrize(("word", "theirs"), [("shared", True), ("owned", False)])
def test_a_group_that_the_cluster_only_shares_is_someone_elses(
    aws: Account, vpc: SimpleNamespace, seen: Any, word: str, theirs: bool
) -> None:
    group_id = aws.ec2.create_security_group(GroupName=f"is-{word}", Description="s", VpcId=vpc.vpc)["GroupId"]
    aws.ec2.create_tags(Resources=[group_id], Tags=[{"Key": f"kubernetes.io/cluster/{NAMES.cluster}", "Value": word}])
    rows = [row for row in seen() if row.what == f"security group {group_id} (is-{word})"]
    aws.ec2.delete_security_group(GroupId=group_id)
    assert bool(rows) is theirs


def test_a_file_system_that_failed_to_go_is_named_with_fsxs_reason(
    aws: Account, vpc: SimpleNamespace, seen: Any, troubles: Any
) -> None:
    file_system_id = pitch_lustre(aws, SimpleNamespace(subnet=vpc.subnet, group=vpc.group), Tags=TAGS)["FileSystemId"]
    until(
        lambda: (
            aws.fsx.describe_file_systems(FileSystemIds=[file_system_id])["FileSystems"][0]["Lifecycle"] == "AVAILABLE"
        )
    )
    troubles(kind="file-system", outcome="fail", message="a disk is lost")
    aws.fsx.delete_file_system(FileSystemId=file_system_id)
    until(
        lambda: aws.fsx.describe_file_systems(FileSystemIds=[file_system_id])["FileSystems"][0]["Lifecycle"] == "FAILED"
    )
    row = holding("aws:fsx/lustreFileSystem:LustreFileSystem", seen())
    assert (
        row is not None and file_system_id in row.what and row.why == "FAILED, a disk is lost" and "Support" in row.do
    )
    aws.fsx.delete_file_system(FileSystemId=file_system_id)
    until(lambda: file_system_id not in [fs["FileSystemId"] for fs in aws.fsx.describe_file_systems()["FileSystems"]])


def test_an_instance_that_does_not_terminate_is_named_with_the_command_that_ends_it(
    world: World, aws: Account, vpc: SimpleNamespace, seen: Any, troubles: Any
) -> None:
    instance = launch(world, SubnetId=vpc.subnet, **tagged("instance"))
    troubles(kind="instance", name=instance)
    aws.ec2.terminate_instances(InstanceIds=[instance])
    rows = [row for row in seen() if row.what == f"instance {instance}"]
    assert [row.why for row in rows] == ["m5.large, shutting-down"] and instance in rows[0].do
    assert state_of(aws, instance) == "shutting-down"
    ask(world, "troubles", clear=True)
    until(lambda: state_of(aws, instance) == "terminated")


def test_a_look_that_is_denied_says_so_and_the_others_still_look(
    world: World, aws: Account, vpc: SimpleNamespace, seen: Any
) -> None:
    allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    deny = {"Effect": "Deny", "Action": "fsx:DescribeFileSystems", "Resource": "*"}
    interface = aws.ec2.create_network_interface(SubnetId=vpc.subnet, Description="ELB app/a/1")["NetworkInterface"]
    texts = [str(row) for row in seen(make_user(world, "half-seeing", allow, deny))]
    aws.ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
    assert any("file systems is left: could not look: AccessDenied" in text for text in texts)
    assert any(interface["NetworkInterfaceId"] in text for text in texts)


def test_a_launch_beyond_the_places_there_are_is_refused_as_ec2_does(world: World, aws: Account) -> None:
    ask(world, "capacity", add=[{"instance_type": "m5.*", "places": 0}])
    assert code_of(lambda: launch_once(aws, world)) == "InsufficientInstanceCapacity"
    ask(world, "capacity", clear=True)
    ask(world, "capacity", add=[{"instance_type": "m5.*", "code": "VcpuLimitExceeded"}])
    assert code_of(lambda: launch_once(aws, world)) == "VcpuLimitExceeded"
    ask(world, "capacity", clear=True)
    launch_once(aws, world)


def launch_once(aws: Account, world: World) -> None:
    image = next(image for image in world.backend("ec2").amis if image.startswith("ami-"))
    instances = aws.ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType="m5.large")["Instances"]
    aws.ec2.terminate_instances(InstanceIds=[instances[0]["InstanceId"]])
