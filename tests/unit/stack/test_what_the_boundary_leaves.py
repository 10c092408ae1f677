"""The boundary: what a role under it may do whose own policies allow everything, and the near misses of that."""

from __future__ import annotations

import json

from infra.rehearsal.aws.iam.policies import Question, allowed
from infra.stack.access import policies
from infra.stack.access.ceiling import boundary_arn, ceiling
from infra.stack.access.policies import AccountPlace
from tests.unit.stack.iam_questions import (
    ANYTHING,
    ARCHIVE,
    BASE,
    BASES,
    BUILDER,
    DATA,
    FREEZE,
    GROUP,
    KEY,
    LIMIT,
    PARAMETER,
    PULL,
    PUSH,
    SCALING,
    SECRET,
    SOMEBODY,
    SPEC,
    STATE,
    STEWARD,
    STRANGER,
    TOPIC,
    TRAINER,
    WHERE,
    A,
    Grant,
    R,
    arn_of,
    ask,
    ec2,
    granted,
    may,
    refused,
    role,
    written,
)

AGENT = (
    "ssm:DescribeAssociation ssm:DescribeDocument ssm:GetDeployablePatchSnapshotForInstance ssm:GetDocument"
    " ssm:GetManifest ssm:ListAssociations ssm:ListInstanceAssociations ssm:PutComplianceItems ssm:PutInventory"
    " ssm:UpdateAssociationStatus ssm:UpdateInstanceAssociationStatus ssm:UpdateInstanceInformation"
    " ec2messages:GetMessages ssmmessages:OpenDataChannel"
)
"""Of AWS's AmazonSSMManagedInstanceCore, but for reading parameters."""
LOOKS = (
    "autoscaling:DescribeAutoScalingGroups ec2:DescribeInstances ec2:DescribeSubnets ecr:GetAuthorizationToken"
    " eks:DescribeCluster eks-auth:AssumeRoleForPodIdentity elasticloadbalancing:DescribeLoadBalancers"
)
INTERFACES = (
    "ec2:AssignIpv6Addresses ec2:AssignPrivateIpAddresses ec2:AttachNetworkInterface ec2:CreateNetworkInterface"
    " ec2:DeleteNetworkInterface ec2:DetachNetworkInterface ec2:ModifyNetworkInterfaceAttribute"
    " ec2:UnassignPrivateIpAddresses"
)
"""Of AmazonEKS_CNI_Policy."""
OBJECTS = tuple(f"{bucket}/campaigns/train/x" for bucket in (STATE, DATA, ARCHIVE))
MOST = [
    Grant(f"{AGENT} {LOOKS}", ("*",)),
    Grant("s3:DeleteObject s3:DeleteObjectVersion", (f"{ARCHIVE}/copies/train/x",), {}, (
        f"{ARCHIVE}/campaigns/train/x", f"{ARCHIVE}/copiesx", f"{STATE}/copies/train/x", f"{DATA}/copies/train/x",
    )),
    Grant(
        "ec2:CreateTags", (ec2("instance"),), {"aws:TagKeys": "kubernetes.io/cluster/bivouac-train"}, (ec2("volume"),)
    ),
    Grant("ec2:CreateTags", (ec2("network-interface"),), {}, (ec2("volume"), ec2("network-interfaces"))),
    Grant(
        INTERFACES, tuple(ec2(kind) for kind in ("network-interface", "instance", "subnet", "security-group")), {},
        tuple(ec2(kind) for kind in ("vpc", "instances", "subnets", "security-groups", "network-interfaces")),
    ),
    Grant(
        "s3:AbortMultipartUpload s3:GetObject s3:GetObjectVersion s3:ListMultipartUploadParts s3:PutObject",
        OBJECTS, {},
        ("arn:aws:s3:::payroll/x", f"{STATE}-2/x", f"{DATA}-2/x", f"{ARCHIVE}-2/x"),
    ),
    Grant("s3:ListBucket s3:ListBucketMultipartUploads s3:ListBucketVersions", (STATE, DATA, ARCHIVE), {}, tuple(
        f"{bucket}-2" for bucket in (STATE, DATA, ARCHIVE)
    )),
    *(
        Grant("kms:Decrypt kms:GenerateDataKey", (KEY,), {"kms:ViaService": f"{one}.{R}.amazonaws.com"},
              (f"arn:aws:kms:{R}:{A}:keys",))
        for one in ("s3", "secretsmanager", "sns", "ssm")
    ),
    Grant(PULL, (TRAINER, BASE), {}, (f"arn:aws:ecr:{R}:{A}:repositoryx",)),
    Grant(PUSH, (TRAINER, STEWARD), {}, (BASE, BASES, f"{TRAINER}2")),
    Grant(
        "eks:DescribeNodegroup eks:UpdateNodegroupConfig", (GROUP,), {},
        (f"arn:aws:eks:{R}:{A}:nodegroup/payroll/x/9a", f"arn:aws:eks:{R}:{A}:nodegroup/bivouacs/x/9a"),
    ),
    Grant(
        "autoscaling:TerminateInstanceInAutoScalingGroup", (SCALING,), {},
        (SCALING.replace("eks-bivouac-", "payroll-"), SCALING.replace("eks-bivouac-", "eks-bivouacs-")),
    ),
    Grant("ec2:TerminateInstances", (ec2("instance"),), BUILDER, (ec2("instances"),)),
    Grant(
        "iam:AttachRolePolicy iam:DetachRolePolicy", (f"arn:aws:iam::{A}:role/ci",), {"iam:PolicyARN": FREEZE},
        (f"arn:aws:iam::{A}:user/ci",),
    ),
]  # fmt: skip
"""What a role under the boundary may do that its own policies allow everything."""
OF_CLUSTER = Grant("kms:Decrypt kms:DescribeKey kms:Encrypt kms:ListGrants", (KEY,), {}, (f"arn:aws:kms:{R}:{A}:keys",))


CLUSTER = role("bivouac-train-cluster")


def test_the_boundary_leaves_what_the_work_needs_and_nothing_next_to_it() -> None:
    assert refused((one for grant in MOST for one in grant.asked()), SOMEBODY, ANYTHING, LIMIT) == []
    assert granted((one for grant in MOST for one in grant.missed()), SOMEBODY, ANYTHING, LIMIT) == []
    joined = {"aws:TagKeys": "cluster.k8s.amazonaws.com/name"}
    assert may(ask("ec2:CreateTags", ec2("network-interface"), joined), SOMEBODY, ANYTHING, LIMIT)


def test_the_boundary_lets_only_a_clusters_role_use_a_key_by_itself() -> None:
    asked = list(OF_CLUSTER.asked())
    assert refused(asked, CLUSTER, ANYTHING, LIMIT) == []
    assert granted(OF_CLUSTER.missed(), CLUSTER, ANYTHING, LIMIT) == []
    for other in (SOMEBODY, f"arn:aws:iam::{A}:role/payroll-cluster", CLUSTER.replace(A, STRANGER), f"{CLUSTER}-2"):
        assert granted(asked, other, ANYTHING, LIMIT) == [], other
    question = [Question(action, resource, {}) for action, resource, _ in asked]
    assert not any(allowed(LIMIT, one) for one in question), "by nobody"


def test_the_boundary_lets_only_a_nodes_role_pull_from_another_account() -> None:
    theirs = f"arn:aws:ecr:us-west-2:{STRANGER}:repository/pytorch-training"
    pulls, pushes = list(Grant(PULL, (theirs,)).asked()), list(Grant(PUSH, (theirs,)).asked())
    node = role("bivouac-train-node")
    assert refused(pulls, node, ANYTHING, LIMIT) == []
    assert granted(pushes, node, ANYTHING, LIMIT) == []
    for other in (SOMEBODY, f"arn:aws:iam::{A}:role/payroll-node", node.replace(A, STRANGER), f"{node}-2"):
        assert granted(pulls, other, ANYTHING, LIMIT) == [], other


OF_TRAINER = (
    Grant("secretsmanager:GetSecretValue", (f"{SECRET}any-AbC123",)),
    Grant("ssm:GetParameter", (f"{PARAMETER}any",)),
)


def test_the_boundary_lets_only_trainers_stewards_and_the_closer_read_secrets() -> None:
    asked = [one for grant in OF_TRAINER for one in grant.asked()]
    trainer, steward = role("bivouac-train-trainer"), role("bivouac-train-steward")
    for reader in (trainer, steward, arn_of("closer")):
        assert refused(asked, reader, ANYTHING, LIMIT) == []
        assert granted((one for grant in OF_TRAINER for one in grant.missed()), reader, ANYTHING, LIMIT) == []
    strangers = (f"arn:aws:iam::{A}:role/payroll-trainer", trainer.replace(A, STRANGER), f"{trainer}-2")
    for other in (SOMEBODY, role("bivouac-train-archive"), *strangers):
        assert granted(asked, other, ANYTHING, LIMIT) == [], other
    more = "secretsmanager:PutSecretValue secretsmanager:DescribeSecret ssm:GetParametersByPath ssm:PutParameter"
    places = (f"{SECRET}any-AbC123", f"{PARAMETER}any")
    assert not any(may((one, at, {}), trainer, ANYTHING, LIMIT) for one in more.split() for at in places)


def test_the_boundary_fits_into_a_managed_policy_with_the_longest_names_of_a_region() -> None:
    """6,144 characters without white space (IAM User Guide, "IAM and AWS STS quotas")."""
    for region in (R, "ap-southeast-1", "ap-northeast-1"):
        (document,) = written(ceiling(AccountPlace(A, region)))
        assert len(json.dumps(document, separators=(",", ":"))) <= 6144, region


def test_the_boundary_lets_only_stewards_and_the_closer_tell_people_and_only_on_topics_of_the_account() -> None:
    (asked,) = Grant("sns:Publish", (TOPIC,)).asked()
    for teller in (role("bivouac-train-steward"), arn_of("closer")):
        assert may(asked, teller, ANYTHING, LIMIT)
    for other in (SOMEBODY, role("bivouac-train-trainer"), role("bivouac-train-archive")):
        assert not may(asked, other, ANYTHING, LIMIT), other
    for topic in (TOPIC.replace(A, STRANGER), TOPIC.replace(R, "eu-west-1")):
        assert not may(("sns:Publish", topic, {}), role("bivouac-train-steward"), ANYTHING, LIMIT), topic


def test_a_tag_that_names_no_key_or_one_more_is_no_clusters_tag() -> None:
    for keys in ([], None, ["kubernetes.io/cluster/a", "bivouac:role"], ["bivouac:role"]):
        context = {} if keys is None else {"aws:tagkeys": keys}
        assert not allowed(LIMIT, Question("ec2:CreateTags", ec2("instance"), context)), keys


def test_a_role_whose_own_policies_say_nothing_may_nothing_under_the_boundary() -> None:
    assert not granted((one for grant in MOST for one in grant.asked()), SOMEBODY, [], LIMIT)


def test_the_boundary_is_this_accounts_in_this_region() -> None:
    assert boundary_arn(WHERE) == f"arn:aws:iam::{A}:policy/bivouac_boundary_{R}"
    assert policies.place(SPEC) == WHERE and WHERE.role("x") == f"arn:aws:iam::{A}:role/x"
