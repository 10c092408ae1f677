"""What is written down of each kind, a second time and by hand: whose it is, what holds it, when it is removed."""

from __future__ import annotations

import pytest

from infra.kinds import KINDS, Checkpoints, ResourceKind, kind_named
from infra.kinds.kind import Step


def those(**fields: object) -> set[str]:
    return {kind.name for kind in KINDS if all(getattr(kind, name) == value for name, value in fields.items())}


def test_iam_budgets_and_buckets_are_listed_alike_in_every_region() -> None:
    assert those(account_wide=True) == {"instance profile", "role", "policy", "budget", "bucket"}


def test_what_holds_the_state_of_a_campaign_is_never_replaced() -> None:
    assert those(holds_state=True) == {"cluster", "node group", "file system", "subnet", "VPC", "bucket"}


def test_settings_are_made_again_over_themselves() -> None:
    assert those(made_over=True) == {
        "access policy", "attached policy", "inline policy", "topic", "image retention", "bucket encryption",
        "bucket versioning", "bucket ownership", "bucket lifecycle", "bucket public access", "bucket policy",
        "bucket object lock",
    }  # fmt: skip


def test_places_and_what_eks_makes_again() -> None:
    assert those(network=True) == {"subnet", "VPC"}
    assert those(remade_by_eks=True) == {"log group"}
    assert those(attributable=False) == set()
    assert those(batch=100) == {"network ACL", "security group rule"}
    assert those(batch=1) == {kind.name for kind in KINDS} - those(batch=100)


def test_checkpoints_lie_on_disks_and_need_what_reads_them() -> None:
    assert those(checkpoints=Checkpoints.HOLDS) == {"snapshot", "volume", "file system", "bucket"}
    assert those(checkpoints=Checkpoints.FREE) == {
        "Auto Scaling group", "spot request", "instance", "load balancer", "classic load balancer", "cluster",
        "NAT gateway", "elastic address",
    }  # fmt: skip


HOLDERS = ("network interface", "security group", "VPC endpoint")
HELD = {
    "cluster": ("node group",), "node group": ("node group", "instance"), "file system": ("file system",),
    "internet gateway": HOLDERS, "subnet": HOLDERS, "VPC": HOLDERS, "security group": HOLDERS,
}  # fmt: skip


def test_what_most_likely_holds_a_kind() -> None:
    assert {kind.name: kind.held_by for kind in KINDS if kind.held_by} == HELD


STEPS = {
    Step.STARTERS: {"schedule", "rule"},
    Step.SCALERS: {"Auto Scaling group", "launch configuration", "spot request"},
    Step.CLUSTERS: {"cluster", "node group"},
    Step.MACHINES: {"instance"},
    Step.SERVICES: {"load balancer", "classic load balancer", "target group", "file system", "NAT gateway",
                    "VPC endpoint", "VPC peering", "flow log"},
    Step.INTERFACES: {"network interface"},
    Step.ADDRESSES: {"elastic address"},
    Step.IMAGES: {"image"},
    Step.SNAPSHOTS: {"snapshot"},
    Step.VOLUMES: {"volume"},
    Step.LAUNCH_SETTINGS: {"launch template", "placement group", "capacity reservation", "key pair"},
    Step.FIREWALLS: {"security group"},
    Step.ROUTES: {"route table", "internet gateway"},
    Step.SUBNETS: {"subnet"},
    Step.NETWORKS: {"VPC"},
    Step.PROFILES: {"instance profile"},
    Step.ROLES: {"role"},
    Step.POLICIES: {"policy"},
    Step.RECORDS: {"parameter", "alarm", "log group", "topic", "budget", "incomplete upload"},
}  # fmt: skip


@pytest.mark.parametrize("step", list(STEPS), ids=lambda step: step.name)
def test_what_goes_in_a_step(step: Step) -> None:
    assert those(step=step) == STEPS[step]


EC2, ELB = "arn:aws:ec2:us-east-1:123456789012:", "arn:aws:elasticloadbalancing:us-east-1:123456789012:"
EKS, FSX = "arn:aws:eks:us-east-1:123456789012:", "arn:aws:fsx:us-east-1:123456789012:"
IAM = "arn:aws:iam::123456789012:"
ARNS = {
    f"{EC2}spot-instances-request/sir-1": "spot request",
    f"{EC2}instance/i-1": "instance",
    "arn:aws:ec2:us-east-1::image/ami-1": "image",
    "arn:aws:ec2:us-east-1::snapshot/snap-1": "snapshot",
    f"{EC2}volume/vol-1": "volume",
    f"{EC2}launch-template/lt-1": "launch template",
    f"{EC2}placement-group/g": "placement group",
    f"{EC2}capacity-reservation/cr-1": "capacity reservation",
    f"{EC2}key-pair/key-1": "key pair",
    f"{EC2}natgateway/nat-1": "NAT gateway",
    f"{EC2}vpc-endpoint/vpce-1": "VPC endpoint",
    f"{EC2}vpc-peering-connection/pcx-1": "VPC peering",
    f"{EC2}vpc-flow-log/fl-1": "flow log",
    f"{EC2}network-interface/eni-1": "network interface",
    f"{EC2}elastic-ip/eipalloc-1": "elastic address",
    f"{EC2}route-table/rtb-1": "route table",
    f"{EC2}internet-gateway/igw-1": "internet gateway",
    f"{EC2}subnet/subnet-1": "subnet",
    f"{EC2}vpc/vpc-1": "VPC",
    f"{EC2}network-acl/acl-1": "network ACL",
    f"{EC2}security-group/sg-1": "security group",
    f"{EC2}security-group-rule/sgr-1": "security group rule",
    f"{EKS}cluster/bivouac-train": "cluster",
    f"{EKS}nodegroup/bivouac-train/gpu/1": "node group",
    f"{EKS}addon/bivouac-train/coredns/1": "add-on",
    f"{EKS}access-entry/bivouac-train/role/123456789012/node/1": "access entry",
    f"{EKS}podidentityassociation/bivouac-train/a-1": "pod identity",
    f"{EKS}fargateprofile/bivouac-train/f/1": "part of a cluster",
    f"{FSX}file-system/fs-1": "file system",
    f"{FSX}association/fs-1/dra-1": "data repository link",
    f"{FSX}backup/backup-1": "backup",
    f"{IAM}instance-profile/bivouac-train-node": "instance profile",
    f"{IAM}role/bivouac-train-node": "role",
    f"{IAM}policy/bivouac_freeze": "policy",
    "arn:aws:budgets::123456789012:budget/bivouac-train": "budget",
    "arn:aws:ssm:us-east-1:123456789012:parameter/one": "parameter",
    "arn:aws:cloudwatch:us-east-1:123456789012:alarm:one": "alarm",
    "arn:aws:logs:us-east-1:123456789012:log-group:one": "log group",
    "arn:aws:sns:us-east-1:123456789012:one": "topic",
    "arn:aws:scheduler:us-east-1:123456789012:schedule/default/one": "schedule",
    "arn:aws:events:us-east-1:123456789012:rule/one": "rule",
    "arn:aws:s3:::bivouac-data-1": "bucket",
    f"{ELB}loadbalancer/net/a/1": "load balancer",
    "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:1:autoScalingGroupName/a": "Auto Scaling group",
    "arn:aws:sqs:us-east-1:123456789012:one": "",
    "arn:aws:ec2:us-east-1:123456789012:dedicated-host/h-1": "",
}


@pytest.mark.parametrize("arn", list(ARNS))
def test_an_arn_is_of_the_first_kind_that_knows_it(arn: str) -> None:
    first = next((kind.name for kind in KINDS if kind.arn and kind.arn.search(arn)), "")
    assert first == ARNS[arn]


def test_names_that_eks_gives_begin_and_end_alike() -> None:
    named = {kind.name: kind.eks_names for kind in KINDS if kind.eks_names != ("", "", "")}
    uuid = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    assert named == {
        "Auto Scaling group": ("node group", "eks-", f"-{uuid}"),
        "security group": ("cluster", "eks-cluster-sg-", r"-\d+"),
    }


def test_a_kind_of_which_only_the_name_is_known() -> None:
    bare = ResourceKind("x")
    assert (bare.batch, bare.step, bare.checkpoints, bare.price({})) == (1, Step.STORES, Checkpoints.READS, 0)
    assert bare.attributable and not (bare.account_wide or bare.network or bare.remade_by_eks or bare.made_over)
    assert kind_named("pod identity").id_output == "associationId"
