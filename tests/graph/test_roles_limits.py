"""Every role over the graph: its limit, to whom it is lent, and what it may not have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.rehearsal.aws.iam.policies import trusts
from infra.spec.names import Names
from tests.graph.engine import Graph

R, A = "us-east-1", "123456789012"


def role(name: str) -> str:
    return f"arn:aws:iam::{A}:role/{name}"


@pytest.fixture(scope="module")
def graphs(full: Graph, foundation: Graph) -> tuple[Graph, Graph]:
    return full, foundation


def test_every_role_of_the_stacks_is_under_the_boundary(graphs: tuple[Graph, Graph]) -> None:
    names = {one.name for graph in graphs for one in graph.of("Role") if one.type.startswith("aws:")}
    assert names == set(ASSUMED)
    for graph in graphs:
        for one in graph.of("Role"):
            if one.type.startswith("aws:"):
                kind = "foundation_boundary" if graph is graphs[1] else "boundary"
                assert one.inputs["permissionsBoundary"].endswith(f"olicy/bivouac_{kind}_us-east-1"), one.name


SCHEDULES = f"arn:aws:scheduler:{R}:{A}:schedule-group/default"
BUILDS = f"arn:aws:codebuild:{R}:{A}:project/bivouac_closer"
BUDGETS = f"arn:aws:budgets::{A}:budget/*"
ASSUMED = {
    "guard": ("scheduler.amazonaws.com", {"aws:SourceAccount": A, "aws:SourceArn": SCHEDULES}),
    "builder-guard": ("scheduler.amazonaws.com", {"aws:SourceAccount": A, "aws:SourceArn": SCHEDULES}),
    "budget": ("budgets.amazonaws.com", {"aws:SourceAccount": A, "aws:SourceArn": BUDGETS}),
    "closer": ("codebuild.amazonaws.com", {"aws:SourceAccount": A, "aws:SourceArn": BUILDS}),
    "cluster": ("eks.amazonaws.com", {"aws:SourceAccount": A}),
    "node": ("ec2.amazonaws.com", {}),
    "builder": ("ec2.amazonaws.com", {}),
    "cni": ("pods.eks.amazonaws.com", {"aws:SourceAccount": A}),
    "steward": ("pods.eks.amazonaws.com", {"aws:SourceAccount": A}),
    "trainer": ("pods.eks.amazonaws.com", {"aws:SourceAccount": A}),
    "archive": ("pods.eks.amazonaws.com", {"aws:SourceAccount": A}),
}


@pytest.mark.parametrize("name", sorted(ASSUMED))
def test_a_role_is_lent_to_its_service_for_this_account_alone(graphs: tuple[Graph, Graph], name: str) -> None:
    service, told = ASSUMED[name]
    (own,) = [one for graph in graphs for one in graph.of("Role") if one.name == name and one.type.startswith("aws:")]
    trust = json.loads(own.inputs["assumeRolePolicy"])

    def lent(to: str, context: dict[str, str], action: str = "sts:AssumeRole") -> bool:
        return trusts(trust, [to], action, {key.lower(): [value] for key, value in context.items()})

    assert lent(service, told)
    assert lent(service, told, "sts:TagSession") is (service == "pods.eks.amazonaws.com")
    services = {one for one, _ in ASSUMED.values()} - {service}
    for other in ("lambda.amazonaws.com", role("operator"), f"arn:aws:iam::{A}:root", A, *services):
        assert not lent(other, told), other
    for key in told:
        assert not lent(service, {**told, key: told[key].replace(A, "999999999999")}), key
        assert not lent(service, {one: value for one, value in told.items() if one != key}), key
    if "aws:SourceArn" in told:
        other = BUDGETS if told["aws:SourceArn"] == SCHEDULES else SCHEDULES
        assert not lent(service, {**told, "aws:SourceArn": other})


def statements(graph: Graph) -> list[tuple[str, dict[str, Any]]]:
    documents = [(node.name, node.inputs["policy"]) for node in graph.of("RolePolicy")]
    return [(name, one) for name, text in documents for one in json.loads(text)["Statement"]]


def test_no_role_has_a_wildcard_action(campaign: Graph) -> None:
    listing = {
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeScalingActivities",
        "cloudwatch:GetMetricData",
        "ec2:DescribeInstanceStatus",
        "ec2:DescribeInstances",
        "ecr:GetAuthorizationToken",
    }
    assert len(statements(campaign)) >= 8
    for role, one in statements(campaign):
        assert not any("*" in action for action in one["Action"]), f"{role}: {one}"
        if "*" in one["Resource"]:
            assert set(one["Action"]) <= listing, f"{role} may do {one['Action']} to everything"


def test_the_trainers_role_may_do_nothing(campaign: Graph) -> None:
    roles = {node.inputs["role"] for kind in ("RolePolicy", "RolePolicyAttachment") for node in campaign.of(kind)}
    assert Names("example").role("trainer") not in roles
    assert campaign.one("PodIdentityAssociation", "trainer").inputs["serviceAccount"] == "trainer"


def test_the_steward_reaches_only_its_own_groups_and_folder_and_the_topic(campaign: Graph) -> None:
    mine = {resource for role, one in statements(campaign) if role == "steward" for resource in one["Resource"]}
    assert mine == {
        "*",
        "arn:aws:eks:us-east-1:123456789012:nodegroup/bivouac-example/bivouac-example-gpu/*",
        "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/eks-bivouac-example-gpu-*",
        "arn:aws:s3:::bivouac-state-123456789012-us-east-1",
        "arn:aws:s3:::bivouac-state-123456789012-us-east-1/campaigns/example/*",
        "arn:aws:s3:::bivouac-state-123456789012-us-east-1/foundation/faults/example/*",
        BUILDS,  # to end this campaign, as `test_closer` tells
        "arn:aws:kms:us-east-1:123456789012:key/*",  # through S3, for the two above, and through the topic
        "arn:aws:sns:us-east-1:123456789012:bivouac_notices",
        "arn:aws:scheduler:us-east-1:123456789012:schedule/default/bivouac-example-silence",
        "arn:aws:scheduler:us-east-1:123456789012:schedule/default/bivouac-example-silence-notice",
        "arn:aws:iam::123456789012:role/bivouac-example-guard",  # for these two, through Scheduler
        "arn:aws:ec2:us-east-1:123456789012:instance/*",  # to reboot those of its own group, by EKS's tags
    }
    own = [one for role, one in statements(campaign) if role == "steward"]
    (reboot,) = [one for one in own if "instance/*" in str(one["Resource"])]
    assert reboot["Action"] == ["ec2:RebootInstances"]
    assert reboot["Condition"] == {
        "StringEquals": {
            "aws:ResourceTag/eks:cluster-name": "bivouac-example",
            "aws:ResourceTag/eks:nodegroup-name": "bivouac-example-gpu",
        }
    }
