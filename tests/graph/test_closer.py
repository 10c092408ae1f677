"""The closer over the graph: what its role may, who may start it, and that it outlives all that bills."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from infra.stack.settings import CampaignSettings
from tests.example import DATA_DIGEST, DEADLINE, example_spec
from tests.graph.engine import ACCOUNT, CODE, Graph, build, campaign_graph, held


def names(service: str, words: str) -> set[str]:
    return {f"{service}:{word}" for word in words.split()}


LOOKS = (
    names("autoscaling", "DescribeAutoScalingGroups DescribeLaunchConfigurations DescribeScalingActivities")
    | names("budgets", "DescribeBudgetAction DescribeBudgetActionsForBudget ListTagsForResource ViewBudget")
    | names("cloudwatch", "DescribeAlarms")
    | names(
        "ec2",
        "DescribeAddresses DescribeAvailabilityZones DescribeCapacityReservations DescribeFlowLogs DescribeImages "
        "DescribeInstanceTypeOfferings DescribeInstances DescribeInternetGateways "
        "DescribeKeyPairs DescribeLaunchTemplateVersions DescribeLaunchTemplates DescribeNatGateways "
        "DescribeNetworkAcls DescribeNetworkInterfaces DescribePlacementGroups DescribePrefixLists "
        "DescribeRouteTables DescribeSecurityGroupRules DescribeSecurityGroups DescribeSnapshots "
        "DescribeSpotInstanceRequests DescribeSubnets DescribeTags DescribeVolumes DescribeVpcAttribute "
        "DescribeVpcEndpoints DescribeVpcPeeringConnections DescribeVpcs",
    )
    | names(
        "eks",
        "DescribeAccessEntry DescribeAddon DescribeCluster DescribeNodegroup DescribePodIdentityAssociation "
        "DescribeUpdate ListAccessEntries ListAddons ListAssociatedAccessPolicies ListClusters ListNodegroups "
        "ListPodIdentityAssociations ListTagsForResource",
    )
    | names("elasticloadbalancing", "DescribeLoadBalancers DescribeTags DescribeTargetGroups")
    | names("events", "ListRules ListTargetsByRule")
    | names(
        "fsx",
        "DescribeBackups DescribeDataRepositoryAssociations DescribeFileSystems DescribeSnapshots DescribeVolumes "
        "ListTagsForResource",
    )
    | names(
        "iam",
        "GetInstanceProfile GetPolicy GetPolicyVersion GetRole GetRolePolicy ListAttachedRolePolicies "
        "ListEntitiesForPolicy ListInstanceProfileTags ListInstanceProfiles ListInstanceProfilesForRole ListPolicies "
        "ListPolicyTags ListPolicyVersions ListRolePolicies ListRoleTags ListRoles",
    )
    | names("kms", "DescribeKey")
    | names("logs", "DescribeLogGroups ListTagsForResource ListTagsLogGroup")
    | names("s3", "GetBucketTagging ListAllMyBuckets")
    | names("scheduler", "GetSchedule ListSchedules ListTagsForResource")
    | names("sns", "GetTopicAttributes ListTagsForResource ListTopics")
    | names("ssm", "DescribeParameters ListTagsForResource")
    | {"tag:GetResources"}
)
"""What the certificate and a teardown ask: descriptions and listings, nothing's content."""
ENDS = (
    names("autoscaling", "DeleteAutoScalingGroup DeleteLaunchConfiguration TerminateInstanceInAutoScalingGroup")
    | names("budgets", "DeleteBudgetAction ModifyBudget")
    | names("cloudwatch", "DeleteAlarms")
    | names(
        "ec2",
        "CancelCapacityReservation CancelSpotInstanceRequests DeleteFlowLogs DeleteInternetGateway DeleteKeyPair "
        "DeleteLaunchTemplate DeleteNatGateway DeleteNetworkInterface DeletePlacementGroup DeleteRoute "
        "DeleteRouteTable DeleteSecurityGroup DeleteSnapshot DeleteSubnet DeleteVolume DeleteVpc DeleteVpcEndpoints "
        "DeleteVpcPeeringConnection DeregisterImage DetachInternetGateway DetachNetworkInterface DisassociateAddress "
        "DisassociateRouteTable ReleaseAddress RevokeSecurityGroupEgress RevokeSecurityGroupIngress StopInstances "
        "TerminateInstances",
    )
    | names(
        "eks",
        "DeleteAccessEntry DeleteAddon DeleteCluster DeleteNodegroup DeletePodIdentityAssociation "
        "DisassociateAccessPolicy UpdateNodegroupConfig",
    )
    | names("elasticloadbalancing", "DeleteLoadBalancer DeleteTargetGroup")
    | names("events", "DeleteRule RemoveTargets")
    | names("fsx", "DeleteDataRepositoryAssociation DeleteFileSystem")
    | names(
        "iam",
        "DeleteInstanceProfile DeletePolicy DeletePolicyVersion DeleteRole DeleteRolePolicy DetachRolePolicy "
        "RemoveRoleFromInstanceProfile",
    )
    | names("logs", "CreateLogStream DeleteLogGroup PutLogEvents")
    | names("s3", "AbortMultipartUpload DeleteObject GetBucketLocation ListBucketMultipartUploads")
    | {"scheduler:DeleteSchedule", "sns:DeleteTopic", "ssm:DeleteParameter"}
    | {"secretsmanager:GetSecretValue", "sns:Publish", "ssm:GetParameter"}
)
"""What ends things and tells people; and the build's own log, and the engine's state, which it rewrites."""
PROJECT = f"arn:aws:codebuild:us-east-1:{ACCOUNT}:project/bivouac_closer"
VARIABLE = "codebuild:environment.environmentVariables"


def asks(graph: Graph) -> dict[str, dict[str, Any]]:
    return {role: one for role, one in held(graph) if one["Action"] == ["codebuild:StartBuild"]}


def test_steward_and_schedule_start_their_campaigns_closer_and_override_nothing(campaign: Graph) -> None:
    found = asks(campaign)
    assert set(found) == {"guard", "steward"}
    for one in found.values():
        assert one["Resource"] == [PROJECT]
        assert one["Condition"]["StringEquals"] == {
            f"{VARIABLE}/BIVOUAC_CAMPAIGN.value": "example",
            f"{VARIABLE}/BIVOUAC_CODE.value": CODE,
        }
        assert one["Condition"]["ForAllValues:StringEquals"] == {
            f"{VARIABLE}.name": ["BIVOUAC_CAMPAIGN", "BIVOUAC_CODE"]
        }
        closed = one["Condition"]["Null"]
        assert set(closed.values()) == {"true"}
        assert {"source.buildspec", "source.location", "serviceRole", "environment.image"} <= {
            key.partition(":")[2] for key in closed
        }


def test_the_schedule_asks_every_half_hour_for_what_its_role_may(campaign: Graph) -> None:
    schedule = campaign.one("Schedule", "closer").inputs
    assert schedule["name"] == "bivouac-example-closer" and schedule["scheduleExpression"] == "rate(30 minutes)"
    assert schedule["target"]["arn"] == "arn:aws:scheduler:::aws-sdk:codebuild:startBuild"
    assert json.loads(schedule["target"]["input"]) == {
        "ProjectName": "bivouac_closer",
        "EnvironmentVariablesOverride": [
            {"Name": "BIVOUAC_CAMPAIGN", "Value": "example", "Type": "PLAINTEXT"},
            {"Name": "BIVOUAC_CODE", "Value": CODE, "Type": "PLAINTEXT"},
        ],
    }


@pytest.mark.parametrize("egress", ["nat", "endpoints"])
def test_all_that_bills_falls_before_the_schedule(egress: str) -> None:
    graph = campaign_graph(example_spec(network={"egress": egress}))
    schedule = graph.one("Schedule", "closer")
    billing = ("Cluster", "NodeGroup", "LustreFileSystem", "NatGateway", "Eip", "Vpc")
    bills = [node for kind in billing for node in graph.of(kind)]
    bills += [one for one in graph.of("VpcEndpoint") if one.inputs["vpcEndpointType"] == "Interface"]
    assert {node.type.rpartition(":")[2] for node in bills} >= {"Cluster", "NodeGroup", "LustreFileSystem"}
    assert [str(node) for node in bills if not graph.comes_after(node, schedule)] == []


def test_the_closer_does_not_enter_the_cluster_and_an_older_campaign_has_no_closer(campaign: Graph) -> None:
    assert not [one for one in campaign.of("AccessEntry") if "closer" in str(one.inputs["principalArn"])]
    older = CampaignSettings(spec=example_spec(), deadline=DEADLINE, data_digest=DATA_DIGEST)
    from infra.stack.program import program

    graph = build(program, older.to_config())
    assert not asks(graph) and [node.name for node in graph.of("Schedule")] == ["deadline"]
    assert [node.name for node in graph.of("AccessEntry")] == ["operator"]


def test_the_project_costs_nothing_at_rest_and_proves_the_code_before_it_runs_any(foundation: Graph) -> None:
    project = foundation.one("Project", "closer").inputs
    assert not project.get("vpcConfig") and project["source"]["type"] == "NO_SOURCE"
    assert project["environment"]["privilegedMode"] is False
    assert foundation.one("LogGroup", "closer").inputs["retentionInDays"] == 30
    phases = yaml.safe_load(project["source"]["buildspec"])["phases"]
    install, built = phases["install"]["commands"], phases["build"]["commands"]
    proof = next(at for at, one in enumerate(install) if "sha256sum --check" in one)
    assert not [one for one in install[:proof] if "python" in one], "nothing of the file is run or read before"
    with_one, _, without = built[-1].partition(" else ")
    assert with_one == 'if [ -n "$BIVOUAC_CAMPAIGN" ]; then bivouac close "$BIVOUAC_CAMPAIGN" --region "$AWS_REGION";'
    assert "bivouac close" not in without, "a trial ends no campaign"
