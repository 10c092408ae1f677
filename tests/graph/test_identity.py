"""Identity over the graph: what each role may do, and the cluster's doors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.plan.checks.finding import Level
from infra.spec.names import buckets
from infra.spec.services import ENDPOINT_SERVICES
from infra.stack.rules import findings
from tests.example import example_spec
from tests.graph.engine import ACCOUNT, DRIVER, Graph, campaign_graph, foundation_with, held
from tests.graph.test_closer import ENDS, LOOKS

_S3_FOLDER = {"s3:GetObject", "s3:PutObject", "s3:ListBucket"}
_KEY_USE = {"kms:Decrypt", "kms:GenerateDataKey"}
TO_EVERYTHING = {
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "cloudwatch:GetMetricData",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeInstances",
    "ecr:GetAuthorizationToken",
}
"""What AWS's service authorization reference lists without a resource type, and somebody here needs."""
MANAGED = {
    "cluster": {"AmazonEKSClusterPolicy"},
    "node": {"AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"},
    "cni": {"AmazonEKS_CNI_Policy"},
    "builder": {"AmazonSSMManagedInstanceCore"},
}
"""AWS's own policies that EKS's and Systems Manager's documentation asks for."""
ALLOWED = {
    "archive": _S3_FOLDER
    | _KEY_USE
    | {
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
        "s3:DeleteObjectVersion",
        "s3:GetObjectVersion",
        "s3:ListBucketMultipartUploads",
        "s3:ListBucketVersions",
        "s3:ListMultipartUploadParts",
    },
    "budget": {"iam:AttachRolePolicy", "iam:DetachRolePolicy"},
    "builder": {
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:CompleteLayerUpload",
        "ecr:DescribeImages",
        "ecr:GetAuthorizationToken",
        "ecr:GetDownloadUrlForLayer",
        "ecr:InitiateLayerUpload",
        "ecr:PutImage",
        "ecr:UploadLayerPart",
    },
    "builder-guard": {"ec2:TerminateInstances"},
    "closer": LOOKS | ENDS | _S3_FOLDER | _KEY_USE,
    "cluster": {"kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:ListGrants"},
    "guard": _KEY_USE | {"codebuild:StartBuild", "eks:UpdateNodegroupConfig", "sns:Publish"},
    "steward": _S3_FOLDER
    | _KEY_USE
    | {
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeScalingActivities",
        "autoscaling:TerminateInstanceInAutoScalingGroup",
        "cloudwatch:GetMetricData",
        "codebuild:StartBuild",
        "ec2:DescribeInstanceStatus",
        "ec2:DescribeInstances",
        "ec2:RebootInstances",
        "eks:DescribeNodegroup",
        "eks:UpdateNodegroupConfig",
        "iam:PassRole",
        "scheduler:GetSchedule",
        "scheduler:UpdateSchedule",
        "sns:Publish",
    },
}
"""Role -> all that its own statements may hold. A new action is written here by whoever can say why."""


@pytest.fixture(scope="module")
def foundation() -> Graph:
    return foundation_with()


@pytest.mark.parametrize("which", ["campaign", "full", "foundation"])
def test_every_statement_holds_only_what_its_role_is_allowed(which: str, request: pytest.FixtureRequest) -> None:
    graph: Graph = request.getfixturevalue(which)
    statements = held(graph)
    assert statements and {role for role, _ in statements} <= set(ALLOWED)
    for role, one in statements:
        assert one["Effect"] == "Allow"
        assert set(one["Action"]) <= ALLOWED[role], f"{role}: {set(one['Action']) - ALLOWED[role]}"
        if "*" in one["Resource"]:
            may = LOOKS if role == "closer" else TO_EVERYTHING
            assert set(one["Action"]) <= may, f"{role} may do {one['Action']} to everything"
        wide = [resource for resource in one["Resource"] if resource.count("*") > 2]
        assert not wide, f"{role}: {wide}"
    roles = {node.name for node in graph.of("Role")}
    for role, expected in MANAGED.items():
        if role not in roles:
            continue
        attached = {
            node.inputs["policyArn"].rpartition("/")[2]
            for node in graph.of("RolePolicyAttachment")
            if node.name.startswith(f"{role}-")
        }
        assert attached == expected


def test_everything_that_is_allowed_is_used_by_somebody(full: Graph, foundation: Graph) -> None:
    """A list that only grows would say nothing."""
    used: dict[str, set[str]] = {}
    for role, one in [*held(full), *held(foundation)]:
        used.setdefault(role, set()).update(one["Action"])
    assert used == ALLOWED
    loose = {
        action for _, one in [*held(full), *held(foundation)] if "*" in one["Resource"] for action in one["Action"]
    }
    assert loose == TO_EVERYTHING | LOOKS
    assert {name for one in MANAGED.values() for name in one} == {
        node.inputs["policyArn"].rpartition("/")[2]
        for graph in (full, foundation)
        for node in graph.of("RolePolicyAttachment")
    }


def test_every_role_trusts_one_service_alone(full: Graph, foundation: Graph) -> None:
    trusted = {
        node.name: [one["Principal"]["Service"] for one in json.loads(node.inputs["assumeRolePolicy"])["Statement"]]
        for graph in (full, foundation)
        for node in graph.of("Role")
        if node.type.startswith("aws:")
    }
    assert trusted == {
        "archive": ["pods.eks.amazonaws.com"],
        "budget": ["budgets.amazonaws.com"],
        "builder": ["ec2.amazonaws.com"],
        "builder-guard": ["scheduler.amazonaws.com"],
        "closer": ["codebuild.amazonaws.com"],
        "cluster": ["eks.amazonaws.com"],
        "cni": ["pods.eks.amazonaws.com"],
        "guard": ["scheduler.amazonaws.com"],
        "node": ["ec2.amazonaws.com"],
        "steward": ["pods.eks.amazonaws.com"],
        "trainer": ["pods.eks.amazonaws.com"],
    }


BY_SNS = {"StringEquals": {"kms:ViaService": "sns.us-east-1.amazonaws.com"}}
KEPT_IN = {"steward": ("state",), "archive": ("archive", "state")}


@pytest.mark.parametrize("which", ["campaign", "full"])
def test_any_key_of_the_account_is_used_only_by_the_topic_and_for_the_roles_buckets(
    which: str, request: pytest.FixtureRequest
) -> None:
    """With a key of one's own or without: the buckets are every campaign's, and so is what encrypts them."""
    statements = held(request.getfixturevalue(which))
    names = vars(buckets(ACCOUNT, "us-east-1"))
    for role, kinds in KEPT_IN.items():
        ours = [one for who, one in statements if who == role and any(a.startswith("kms:") for a in one["Action"])]
        one, *more = ours
        assert [other["Condition"] for other in more] == [BY_SNS] * (role == "steward")
        assert all((other["Action"], other["Resource"]) == (one["Action"], one["Resource"]) for other in more)
        assert (one["Action"], one["Resource"]) == (sorted(_KEY_USE), [f"arn:aws:kms:us-east-1:{ACCOUNT}:key/*"])
        about = [f"arn:aws:s3:::{names[kind]}{end}" for kind in kinds for end in ("", "/*")]
        assert one["Condition"] == {
            "StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"},
            "StringLike": {"kms:EncryptionContext:aws:s3:arn": about},
        }
    users = {who for who, one in statements if any(a.startswith("kms:") for a in one["Action"])}
    assert users <= {*KEPT_IN, "cluster", "guard"}
    (topic,) = [one for who, one in statements if who == "guard" and any(a.startswith("kms:") for a in one["Action"])]
    assert topic["Condition"] == BY_SNS


def test_a_private_endpoint_has_a_way_from_the_driver_and_no_other(full: Graph, campaign: Graph) -> None:
    vpc = full.one("Cluster", "cluster").inputs["vpcConfig"]
    assert vpc["endpointPublicAccess"] is False and vpc["endpointPrivateAccess"] is True
    back, way = (
        full.one("Route", "driver-back").inputs,
        full.one("Route", f"driver-{DRIVER['route_table_ids'][0]}").inputs,
    )
    assert back["destinationCidrBlock"] == "10.7.0.0/16" and way["destinationCidrBlock"] == "10.42.0.0/16"
    door = full.one("SecurityGroupIngressRule", "driver-api").inputs
    assert (door["securityGroupId"], door["cidrIpv4"], door["fromPort"]) == ("sg-cluster", "10.7.0.0/16", 443)
    assert not campaign.of("VpcPeeringConnection")
    some = campaign_graph(example_spec(network={"api_allowed_cidrs": ["203.0.113.0/24"]}))
    assert some.one("Cluster", "cluster").inputs["vpcConfig"]["publicAccessCidrs"] == ["203.0.113.0/24"]


def test_without_a_way_out_there_is_one_endpoint_for_each_service_in_the_nodes_zone() -> None:
    graph = campaign_graph(example_spec(network={"egress": "endpoints"}))
    made = {node.inputs["serviceName"].removeprefix("com.amazonaws.us-east-1.") for node in graph.of("VpcEndpoint")}
    assert made == {"s3", *ENDPOINT_SERVICES} and "secretsmanager" not in made
    assert all(n.inputs.get("privateDnsEnabled") for n in graph.of("VpcEndpoint") if n.name != "s3")


def test_a_job_with_secrets_has_rights_and_endpoint_and_the_stack_keeps_its_rules() -> None:
    workload = {
        "script": "/train.py", "checkpoints": {"format": "dcp"}, "estimates": {"steps": 10, "step_seconds": 1},
        "secrets": {"TOKEN": {"secret": "bivouac_job/token"}, "KEY": {"parameter": "/bivouac_job/key"}},
    }  # fmt: skip
    spec = example_spec(training=None, data=None, workload=workload, network={"egress": "endpoints"})
    graph = campaign_graph(spec)
    (own,) = (node.inputs for node in graph.of("RolePolicy") if node.name == "trainer")
    assert own["role"] == "bivouac-example-trainer"
    reads = [one for one in json.loads(own["policy"])["Statement"] if one["Action"] != ["kms:Decrypt"]]
    secret = f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:bivouac_job/token-??????"
    assert [(read["Action"], read["Resource"]) for read in reads] == [
        (["secretsmanager:GetSecretValue"], [secret]),
        (["ssm:GetParameter"], [f"arn:aws:ssm:us-east-1:{ACCOUNT}:parameter/bivouac_job/key"]),
    ]
    made = {node.inputs["serviceName"].removeprefix("com.amazonaws.us-east-1.") for node in graph.of("VpcEndpoint")}
    assert made == {"s3", *ENDPOINT_SERVICES, "secretsmanager"}
    assert not [finding for finding in findings(graph.asked, spec) if finding.level is Level.ERROR]


ADA, BOB, EVE = (f"arn:aws:iam::{ACCOUNT}:{one}" for one in ("role/team/ada", "user/bob", "user/eve"))
POLICY = "arn:aws:eks::aws:cluster-access-policy/AmazonEKS"
HERE = {"type": "namespace", "namespaces": ["campaign"]}


def entries(operator: str) -> dict[str, tuple[str, Any]]:
    """Principal -> policy and scope, with ada as admin, bob as operator and eve as viewer, driven by `operator`."""
    people = [(ADA, "admin"), (BOB, "operator"), (EVE, "viewer")]
    spec = example_spec(access=[{"principal": principal, "role": role} for principal, role in people])
    graph = campaign_graph(spec, operator_arn=operator)
    names = {node.inputs["principalArn"]: node.name for node in graph.of("AccessEntry")}
    bound = {node.inputs["principalArn"]: node for node in graph.of("AccessPolicyAssociation")}
    assert names.keys() == bound.keys() and len(names) == len(graph.of("AccessEntry"))
    return {
        who: (node.inputs["policyArn"].removeprefix(POLICY), node.inputs["accessScope"]) for who, node in bound.items()
    }


def test_named_people_have_an_entry_of_their_role_and_the_driver_one_more() -> None:
    people = {
        ADA: ("ClusterAdminPolicy", {"type": "cluster"}),
        BOB: ("EditPolicy", HERE),
        EVE: ("ViewPolicy", HERE),
    }
    assert entries(f"arn:aws:iam::{ACCOUNT}:user/driver") == people | {
        f"arn:aws:iam::{ACCOUNT}:user/driver": ("ClusterAdminPolicy", {"type": "cluster"})
    }
    assert entries(ADA) == people, "EKS takes one entry for each principal"
