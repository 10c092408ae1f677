"""What keeps a teardown from its end is named with its reason, its cure and its owner."""

from __future__ import annotations

from typing import Any

import pytest

from infra.kinds import Remain, kind_named
from infra.spec.names import Names
from tests.unit.kinds.aws_by_model import OTHER, TRAIN, ByModel, pairs

NAMES = Names("train")
OURS, THEIRS = pairs(TRAIN), pairs(OTHER)
VPCS = "ec2.describe_vpcs"
TWO_VPCS = {VPCS: {"Vpcs": [{"VpcId": "vpc-1"}, {"VpcId": "vpc-2"}]}}
TAGGED = {"Filters": [{"Name": "tag:bivouac:campaign", "Values": ["train"]}]}
INSIDE = {"Filters": [{"Name": "vpc-id", "Values": ["vpc-1", "vpc-2"]}]}
GROUPS, OWNED = "ec2.describe_security_groups", "kubernetes.io/cluster/bivouac-train"
OF_CLUSTER = {"Filters": [{"Name": f"tag:{OWNED}", "Values": ["owned"]}]}
NO_GROUPS: dict[str, Any] = {GROUPS: {"SecurityGroups": []}}


def left(kind: str, account: Any) -> list[Remain]:
    remains = kind_named(kind).remains
    assert remains is not None
    return list(remains(account, NAMES))


IN_NETWORK = [
    ("network interface", "ec2.describe_network_interfaces", "NetworkInterfaces"),
    ("security group", "ec2.describe_security_groups", "SecurityGroups"),
    ("VPC endpoint", "ec2.describe_vpc_endpoints", "VpcEndpoints"),
]


@pytest.mark.parametrize(("kind", "operation", "result"), IN_NETWORK)
def test_only_the_campaigns_networks_are_searched(kind: str, operation: str, result: str) -> None:
    """Besides, by tag, its groups: they may be in an existing network."""
    groups = [] if kind == "VPC endpoint" else [(GROUPS, TAGGED), (GROUPS, OF_CLUSTER)]
    account = ByModel({**TWO_VPCS, **NO_GROUPS, operation: {result: []}})
    assert left(kind, account) == []
    network = [(VPCS, TAGGED), (operation, INSIDE)]
    assert sorted(map(str, account.calls)) == sorted(map(str, network + groups))
    account = ByModel({VPCS: {"Vpcs": []}, **NO_GROUPS})
    assert left(kind, account) == [] and sorted(map(str, account.calls)) == sorted(map(str, [*network[:1], *groups]))


def test_in_an_existing_network_only_interfaces_with_the_campaigns_groups_remain() -> None:
    def groups(asked: dict[str, Any]) -> dict[str, Any]:
        assert asked in (TAGGED, OF_CLUSTER)
        found = {"GroupId": "sg-1", "Tags": OURS} if asked == TAGGED else {"GroupId": "sg-2"}
        return {"SecurityGroups": [found]}

    interface = {"NetworkInterfaceId": "eni-1", "SubnetId": "subnet-1", "Status": "available",
                 "Description": "aws-K8S-i-1"}  # fmt: skip
    listing = "ec2.describe_network_interfaces"
    account = ByModel({VPCS: {"Vpcs": []}, GROUPS: groups, listing: {"NetworkInterfaces": [interface]}})
    (row,) = left("network interface", account)
    assert row.what == "network interface eni-1 in subnet-1" and row.ours
    assert account.calls[-1] == (listing, {"Filters": [{"Name": "group-id", "Values": ["sg-1", "sg-2"]}]})


def test_instances_by_tag_and_in_the_network_remain_once_each() -> None:
    def machine(id: str, state: str, tags: list[Any]) -> dict[str, Any]:
        return {"InstanceId": id, "InstanceType": "p5.48xlarge", "State": {"Name": state}, "Tags": tags}

    by_tag = [
        {"Instances": [machine("i-1", "running", OURS), machine("i-2", "terminated", OURS)]},
        {"Instances": [machine("i-3", "shutting-down", OURS)]},
    ]
    inside = [
        {"Instances": [machine("i-1", "running", OURS), machine("i-4", "stopped", THEIRS)]},
        {"Instances": [{**machine("i-5", "pending", []), "Tags": []}]},
    ]

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        return {"Reservations": {str(TAGGED): by_tag, str(INSIDE): inside}[str(asked)]}

    cure = "`aws ec2 terminate-instances --instance-ids {}`"
    foreign, owner = ", not the campaign's but in its VPC", "its owner ends it"
    assert left("instance", ByModel({**TWO_VPCS, "ec2.describe_instances": answer})) == [
        Remain("instance i-1", "p5.48xlarge, running", cure.format("i-1"), ours=True),
        Remain("instance i-3", "p5.48xlarge, shutting-down", cure.format("i-3"), ours=True),
        Remain("instance i-4", f"p5.48xlarge, stopped{foreign}", owner),
        Remain("instance i-5", f"p5.48xlarge, pending{foreign}", owner),
    ]


def test_node_groups_remain_with_what_aws_says_is_wrong_with_them() -> None:
    groups: dict[str, dict[str, Any]] = {
        "gpu": {"status": "DELETE_FAILED", "health": {"issues": [
            {"code": "Ec2SecurityGroupDeletionFailure", "message": "in use"},
            {"code": "AccessDenied", "message": "no role"},
        ]}},
        "system": {"status": "DELETING", "health": {"issues": []}},
        "bare": {"status": "ACTIVE"},
    }  # fmt: skip
    account = ByModel({
        "eks.list_clusters": {"clusters": ["web", "bivouac-train"]},
        "eks.list_nodegroups": {"nodegroups": list(groups)},
        "eks.describe_nodegroup": lambda asked: {"nodegroup": groups[asked["nodegroupName"]]},
    })  # fmt: skip
    again = "the same command deletes it again"
    issues = "Ec2SecurityGroupDeletionFailure: in use; AccessDenied: no role"
    assert left("node group", account) == [
        Remain("node group gpu", f"DELETE_FAILED, {issues}", f"mend the issue; {again}", ours=True),
        Remain("node group system", "DELETING, AWS gives no issue", again, ours=True),
        Remain("node group bare", "ACTIVE, AWS gives no issue", again, ours=True),
    ]
    assert account.calls[1:3] == [
        ("eks.list_nodegroups", {"clusterName": "bivouac-train"}),
        ("eks.describe_nodegroup", {"clusterName": "bivouac-train", "nodegroupName": "gpu"}),
    ]
    gone = ByModel({"eks.list_clusters": {"clusters": ["web", "bivouac-train-2"]}})
    assert left("node group", gone) == [], "without its cluster AWS would answer with an error"


def test_the_campaigns_file_systems_remain_with_aws_reason() -> None:
    systems = [
        {"FileSystemId": "fs-00000001", "Lifecycle": "AVAILABLE", "Tags": THEIRS},
        {"FileSystemId": "fs-00000002", "Lifecycle": "DELETING", "Tags": OURS},
        {"FileSystemId": "fs-00000003", "Lifecycle": "AVAILABLE"},
        {"FileSystemId": "fs-00000004", "Lifecycle": "FAILED", "Tags": OURS, "FailureDetails": {"Message": "no room"}},
    ]
    account = ByModel({"fsx.describe_file_systems": {"FileSystems": systems}})
    cure = "wait while it is DELETING, and run the same command again; FAILED is for AWS Support"
    assert left("file system", account) == [
        Remain("file system fs-00000002", "DELETING", cure, ours=True),
        Remain("file system fs-00000004", "FAILED, no room", cure, ours=True),
    ]


def test_an_endpoint_in_the_network_that_is_not_the_campaigns_remains() -> None:
    endpoints = [
        {"VpcEndpointId": "vpce-1", "ServiceName": "s3", "Tags": OURS},
        {"VpcEndpointId": "vpce-2", "ServiceName": "guardduty-data", "Tags": THEIRS},
        {"VpcEndpointId": "vpce-3", "ServiceName": "sts"},
    ]
    account = ByModel({**TWO_VPCS, "ec2.describe_vpc_endpoints": {"VpcEndpoints": endpoints}})
    why, cure = "someone else made it in the campaign's VPC", "its owner deletes it"
    assert left("VPC endpoint", account) == [
        Remain("VPC endpoint vpce-2 (guardduty-data)", why, cure),
        Remain("VPC endpoint vpce-3 (sts)", why, cure),
    ]


SWEPT = "`bivouac sweep train` removes it"
GOES, WITH_INSTANCE = "it goes with that", "it goes with the instance"
DELETE = "`aws ec2 delete-network-interface --network-interface-id eni-1`, if nobody needs it"
INTERFACES: list[tuple[dict[str, Any], str, str, bool, bool]] = [
    ({"Description": "aws-K8S-i-1"}, "left by the cluster's network plugin (aws-K8S-i-1), available", SWEPT,
     True, False),
    ({"Description": "aws-k8s-trunk-eni"}, "left by the cluster's network plugin (aws-k8s-trunk-eni), available", SWEPT,
     True, False),
    ({"TagSet": [{"Key": "node.k8s.amazonaws.com/instance_id", "Value": "i-1"}]},
     "left by the cluster's network plugin (), available", SWEPT, True, False),
    ({"Description": "Interface for NAT Gateway nat-1"}, "of the NAT gateway (Interface for NAT Gateway nat-1)", GOES,
     True, True),
    ({"Description": "VPC Endpoint Interface vpce-1"}, "of the VPC endpoint (VPC Endpoint Interface vpce-1)", GOES,
     True, True),
    ({"Description": "ENI for FSx file system fs-1"}, "of the FSx file system (ENI for FSx file system fs-1)", GOES,
     True, True),
    ({"Description": "Amazon EKS bivouac-train"}, "of the EKS control plane (Amazon EKS bivouac-train)", GOES,
     True, True),
    ({"Description": "ELB net/web/1", "Attachment": {"InstanceId": "i-1"}}, "of the load balancer net/web/1",
     "the owner of that load balancer removes it, then it goes", False, False),
    ({"Description": "AWS Lambda VPC ENI-f"}, "of the Lambda function AWS Lambda VPC ENI-f",
     "the owner of that Lambda function removes it, then it goes", False, False),
    ({"Description": "RDSNetworkInterface"}, "of the RDS database RDSNetworkInterface",
     "the owner of that RDS database removes it, then it goes", False, False),
    ({"Description": "EFS mount target for fs-1"}, "of the EFS mount target EFS mount target for fs-1",
     "the owner of that EFS mount target removes it, then it goes", False, False),
    ({"Attachment": {"InstanceId": "i-1"}}, "of instance i-1", WITH_INSTANCE, True, True),
    ({"Attachment": {}, "RequesterId": "AIDA", "OwnerId": "1", "Description": "by hand"},
     "made by AIDA: by hand, available", DELETE, False, False),
    ({"OwnerId": "123456789012"}, "made by 123456789012: no description, available", DELETE, False, False),
]  # fmt: skip


@pytest.mark.parametrize(("item", "why", "do", "ours", "waits"), INTERFACES, ids=[case[1][:40] for case in INTERFACES])
def test_an_interface_remains_with_who_made_it(
    item: dict[str, Any], why: str, do: str, ours: bool, waits: bool
) -> None:
    whole = {"NetworkInterfaceId": "eni-1", "SubnetId": "subnet-1", "Status": "available", **item}
    answer = {"NetworkInterfaces": [whole, {**whole, "NetworkInterfaceId": "eni-2"}]}
    first, second = left(
        "network interface", ByModel({**TWO_VPCS, **NO_GROUPS, "ec2.describe_network_interfaces": answer})
    )
    assert first == Remain("network interface eni-1 in subnet-1", why, do, ours=ours, waits=waits)
    assert second.what == "network interface eni-2 in subnet-1"


def test_groups_remain_if_a_rule_elsewhere_names_them_or_somebody_else_made_them() -> None:
    def naming(*ids: str) -> list[dict[str, Any]]:
        return [{"UserIdGroupPairs": [{"GroupId": id} for id in ids]}]

    owned = [{"Key": OWNED, "Value": "owned"}]
    shared = [{"Key": OWNED, "Value": "shared"}]
    inside: list[dict[str, Any]] = [
        {"GroupId": "sg-0", "GroupName": "default", "IpPermissions": naming("sg-1")},
        {"GroupId": "sg-1", "GroupName": "nodes", "Tags": OURS, "IpPermissions": naming("sg-2")},
        {"GroupId": "sg-2", "GroupName": "eks", "Tags": owned},
        {
            "GroupId": "sg-3",
            "GroupName": "theirs",
            "Tags": THEIRS,
            "IpPermissionsEgress": naming("sg-9", "sg-2", "sg-1"),
        },
        {"GroupId": "sg-4", "GroupName": "used", "Tags": shared},
    ]
    outside = [{"GroupId": "sg-5", "GroupName": "peer", "IpPermissions": [*naming("sg-9"), *naming("sg-2")]}]

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        assert asked in (INSIDE, TAGGED, OF_CLUSTER, {})
        if asked in (TAGGED, OF_CLUSTER):
            tags = OURS if asked == TAGGED else owned
            return {"SecurityGroups": [one for one in inside if one.get("Tags") == tags]}
        return {"SecurityGroups": [*inside, *outside] if asked == {} else inside}

    foreign = ("someone else made it in the campaign's VPC", "its owner deletes it")

    def named(what: str, other: str) -> Remain:
        id = other.partition(" ")[0]
        return Remain(f"security group {what}", f"a rule of {other} names it", f"the owner of {id} revokes that rule")

    assert left("security group", ByModel({**TWO_VPCS, GROUPS: answer})) == [
        named("sg-1 (nodes)", "sg-0 (default)"),
        named("sg-1 (nodes)", "sg-3 (theirs)"),
        named("sg-2 (eks)", "sg-3 (theirs)"),
        named("sg-2 (eks)", "sg-5 (peer)"),
        Remain("security group sg-3 (theirs)", *foreign),
        Remain("security group sg-4 (used)", *foreign),
    ]
    inside[:] = inside[3:]
    account = ByModel({**TWO_VPCS, GROUPS: answer})
    assert [one.what for one in left("security group", account)] == [
        "security group sg-3 (theirs)", "security group sg-4 (used)",
    ]  # fmt: skip
    assert (GROUPS, {}) not in account.calls, "nothing of ours can be named"


def test_a_remain_reads_as_one_sentence() -> None:
    assert str(Remain("subnet s", "in use", "wait")) == "subnet s is left: in use; wait"
    assert not Remain("a", "b", "c").ours and not Remain("a", "b", "c").waits
