"""The boundary: what a role under it may do whose own policies allow everything, and the near misses of that."""

from __future__ import annotations

import json

import pytest

from infra.rehearsal.aws.iam.policies import Question, allowed
from infra.stack.access import policies
from infra.stack.access.ceiling import boundary_arn, ceiling, foundation_ceiling
from infra.stack.access.policies import AccountPlace
from tests.unit.stack.iam_questions import (
    ANYTHING,
    ARCHIVE,
    BASE,
    BASES,
    BUILDER,
    DATA,
    FOUNDERS,
    FREEZE,
    GROUP,
    KEY,
    LIMIT,
    OWN,
    PARAMETER,
    PULL,
    PUSH,
    SCALING,
    SCHEDULE,
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
    Ask,
    Document,
    Grant,
    R,
    arn_of,
    ask,
    ec2,
    granted,
    limit_of,
    may,
    refused,
    role,
    written,
)

AGENT = (
    "ecr:GetAuthorizationToken"
    " ssm:DescribeAssociation ssm:DescribeDocument ssm:GetDeployablePatchSnapshotForInstance ssm:GetDocument"
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
    Grant(LOOKS, ("*",)),
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
    Grant(
        "eks:DescribeNodegroup eks:UpdateNodegroupConfig", (GROUP,), {},
        (f"arn:aws:eks:{R}:{A}:nodegroup/payroll/x/9a", f"arn:aws:eks:{R}:{A}:nodegroup/bivouacs/x/9a"),
    ),
    Grant(
        "autoscaling:TerminateInstanceInAutoScalingGroup", (SCALING,), {},
        (SCALING.replace("eks-bivouac-", "payroll-"), SCALING.replace("eks-bivouac-", "eks-bivouacs-")),
    ),
    Grant("scheduler:GetSchedule scheduler:UpdateSchedule", (f"{SCHEDULE}silence",), {}, tuple(
        SCHEDULE.replace("default/bivouac-", other) for other in ("default/payroll-", "default/bivouacs-", "payroll/")
    )),
    Grant("iam:PassRole", (role("bivouac-train-guard"),), {"iam:PassedToService": "scheduler.amazonaws.com"}, (
        role("bivouac-train-node"), role("admin"), role("payroll-guard"), role("bivouac_build_guard_us-east-1"),
    )),
]  # fmt: skip
"""What a campaign's role may do under the boundary if its own policies allow everything."""
OF_THE_FOUNDATION = [
    Grant(AGENT, ("*",)),
    Grant(PULL, (TRAINER, BASE), {}, (f"arn:aws:ecr:{R}:{A}:repositoryx",)),
    Grant(PUSH, (TRAINER, STEWARD), {}, (BASE, BASES, f"{TRAINER}2")),
]
"""What the builders may do besides under the foundation's boundary."""
OF_CLUSTER = [
    Grant("kms:Decrypt kms:DescribeKey kms:Encrypt kms:ListGrants", (KEY,), {f"aws:ResourceTag/{tag}": "true"}, (
        f"arn:aws:kms:{R}:{A}:keys",
    ))
    for tag in ("bivouac:foundation", "bivouac:key")
]  # fmt: skip


CLUSTER = role("bivouac-train-cluster")


def test_the_boundary_leaves_what_the_work_needs_and_nothing_next_to_it() -> None:
    assert refused((one for grant in MOST for one in grant.asked()), SOMEBODY, ANYTHING, LIMIT) == []
    assert granted((one for grant in MOST for one in grant.missed()), SOMEBODY, ANYTHING, LIMIT) == []
    joined = {"aws:TagKeys": "cluster.k8s.amazonaws.com/name"}
    assert may(ask("ec2:CreateTags", ec2("network-interface"), joined), SOMEBODY, ANYTHING, LIMIT)


def test_the_boundary_lets_only_a_budgets_role_freeze_and_thaw() -> None:
    freezing = Grant(
        "iam:AttachRolePolicy iam:DetachRolePolicy", (f"arn:aws:iam::{A}:role/ci",), {"iam:PolicyARN": FREEZE},
        (f"arn:aws:iam::{A}:user/ci",),
    )  # fmt: skip
    budget = role("bivouac-train-budget")
    assert refused(freezing.asked(), budget, ANYTHING, LIMIT) == []
    assert granted(freezing.missed(), budget, ANYTHING, LIMIT) == []
    assert granted(freezing.asked(), SOMEBODY, ANYTHING, LIMIT) == []


def test_only_builders_have_the_agents_and_the_registrys_rights() -> None:
    asked = [one for grant in OF_THE_FOUNDATION for one in grant.asked() if one[0] != "ecr:GetAuthorizationToken"]
    missed = [one for grant in OF_THE_FOUNDATION for one in grant.missed()]
    ends = ask("ec2:TerminateInstances", ec2("instance"), BUILDER)
    for own in ("builder", "builder-guard"):
        assert refused([*asked, ends], arn_of(own), ANYTHING, FOUNDERS) == []
        assert granted(missed, arn_of(own), ANYTHING, FOUNDERS) == []
        assert granted(OF_READERS, arn_of(own), ANYTHING, FOUNDERS) == [], "AWS's policy for its agent reads parameters"
    assert granted([*asked, ends], SOMEBODY, ANYTHING, LIMIT) == []


def test_the_boundary_lets_only_a_clusters_role_use_a_key_and_only_a_marked_one() -> None:
    asked = [one for grant in OF_CLUSTER for one in grant.asked()]
    assert refused(asked, CLUSTER, ANYTHING, LIMIT) == []
    # Whatever the tag's value is.
    missed = [one for grant in OF_CLUSTER for one in grant.missed() if one[1] != KEY or not one[2]]
    assert len({at for _, at, _ in missed}) == 4
    assert granted(missed, CLUSTER, ANYTHING, LIMIT) == []
    for other in (SOMEBODY, f"arn:aws:iam::{A}:role/payroll-cluster", CLUSTER.replace(A, STRANGER), f"{CLUSTER}-2"):
        assert granted(asked, other, ANYTHING, LIMIT) == [], other
    marks = {"aws:resourcetag/bivouac:key": ["true"]}
    assert not any(allowed(LIMIT, Question(action, resource, marks)) for action, resource, _ in asked), "by nobody"


def test_the_boundary_lets_only_a_nodes_role_pull_from_another_account() -> None:
    theirs = f"arn:aws:ecr:us-west-2:{STRANGER}:repository/pytorch-training"
    pulls, pushes = list(Grant(PULL, (theirs,)).asked()), list(Grant(PUSH, (theirs,)).asked())
    node = role("bivouac-train-node")
    assert refused(pulls, node, ANYTHING, LIMIT) == []
    assert granted(pushes, node, ANYTHING, LIMIT) == []
    for other in (SOMEBODY, f"arn:aws:iam::{A}:role/payroll-node", node.replace(A, STRANGER), f"{node}-2"):
        assert granted(pulls, other, ANYTHING, LIMIT) == [], other


READERS = {"trainer": "bivouac_job", "steward": "bivouac_webhook"}
OF_READERS = [
    ask(action, f"{place}{beginning}{end}")
    for beginning in READERS.values()
    for action, place, end in (
        ("secretsmanager:GetSecretValue", SECRET, "/any-AbC123"), ("ssm:GetParameter", PARAMETER, "/any")
    )
]  # fmt: skip


@pytest.mark.parametrize("kind", READERS)
def test_the_boundary_lets_jobs_and_stewards_read_what_is_called_for_them(kind: str) -> None:
    reader = role(f"bivouac-train-{kind}")
    own = [one for one in OF_READERS if READERS[kind] in one[1]]
    assert granted(OF_READERS, reader, ANYTHING, LIMIT) == own and len(own) == 2
    for known, other in ((A, STRANGER), (R, "eu-west-1"), ("bivouac_", "team/bivouac_"), ("bivouac_", "bivouac-")):
        missed = [(action, at.replace(known, other), context) for action, at, context in own]
        assert granted(missed, reader, ANYTHING, LIMIT) == [], other
    strangers = (f"arn:aws:iam::{A}:role/payroll-{kind}", reader.replace(A, STRANGER), f"{reader}-2")
    for other in (SOMEBODY, role("bivouac-train-archive"), *strangers):
        assert granted(own, other, ANYTHING, LIMIT) == [], other
    more = "secretsmanager:PutSecretValue secretsmanager:DescribeSecret ssm:GetParametersByPath ssm:PutParameter"
    assert not any(may((one, at, {}), reader, ANYTHING, LIMIT) for one in more.split() for _, at, _ in own)


def test_the_boundary_fits_into_a_managed_policy_with_the_longest_names_of_a_region() -> None:
    """6,144 characters without white space (IAM User Guide, "IAM and AWS STS quotas")."""
    for region in (R, "ap-southeast-1", "ap-northeast-1"):
        for statements in (ceiling, foundation_ceiling):
            (document,) = written(statements(AccountPlace(A, region)))
            # A tenth is kept for the next right.
            assert len(json.dumps(document, separators=(",", ":"))) <= 6144 * 0.9, region


def test_the_boundary_lets_only_stewards_tell_people_and_only_on_bivouacs_topics() -> None:
    (asked,) = Grant("sns:Publish", (TOPIC,)).asked()
    assert may(asked, role("bivouac-train-steward"), ANYTHING, LIMIT)
    assert may(asked, arn_of("closer"), ANYTHING, FOUNDERS) and not may(asked, arn_of("builder"), ANYTHING, FOUNDERS)
    for other in (SOMEBODY, role("bivouac-train-trainer"), role("bivouac-train-archive")):
        assert not may(asked, other, ANYTHING, LIMIT), other
    for topic in (TOPIC.replace(A, STRANGER), TOPIC.replace(R, "eu-west-1"), TOPIC.replace("bivouac_", "payroll_")):
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


def asked_by(statement: Document) -> list[Ask]:
    """A request for each action and resource of a statement, that meets its conditions."""
    context = dict[str, str]()
    for operator, tests in statement.get("Condition", {}).items():
        for key, value in tests.items():
            context[key] = "x" if operator == "Null" else str(value if isinstance(value, str) else value[0])
    context |= {"aws:ResourceTag/bivouac:foundation": "true"}
    return [
        ask(action, at.replace("*", "x"), {key: value.replace("*", "x") for key, value in context.items()})
        for action in statement["Action"]
        for at in statement["Resource"]
    ]


@pytest.mark.parametrize("name", OWN)
def test_no_boundary_is_in_the_way_of_what_a_roles_own_policy_allows(name: str) -> None:
    asked = [one for document in OWN[name] for statement in document["Statement"] for one in asked_by(statement)]
    assert refused(asked, arn_of(name), OWN[name]) == [], "the requests meet the policy"
    assert refused(asked, arn_of(name), limit_of(name)) == []
