"""Every tag, name and description of the program, held against botocore's model of the call that receives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from moto.core.utils import get_service_model

from infra.rehearsal.aws.answers import RequestRefused
from infra.rehearsal.aws.strict.admission import refuse_unfit
from infra.spec.campaign import MAX_NAME
from infra.spec.names import LONGEST_TAG, OWNER_TAG
from tests.example import example_spec
from tests.graph.engine import KEY, Graph, Node, campaign_graph, foundation_with

NAME, ABOUT = "name", "description"
CALLS: dict[str, tuple[str, str, dict[str, str]]] = {
    "aws:budgets/budget:Budget": ("budgets", "CreateBudget", {NAME: "Budget.BudgetName"}),
    "aws:cloudwatch/logGroup:LogGroup": ("logs", "CreateLogGroup", {NAME: "logGroupName"}),
    "aws:codebuild/project:Project": ("codebuild", "CreateProject", {NAME: "name", ABOUT: "description"}),
    "aws:ec2/eip:Eip": ("ec2", "AllocateAddress", {}),
    "aws:ec2/internetGateway:InternetGateway": ("ec2", "CreateInternetGateway", {}),
    "aws:ec2/launchTemplate:LaunchTemplate": ("ec2", "CreateLaunchTemplate", {NAME: "LaunchTemplateName"}),
    "aws:ec2/natGateway:NatGateway": ("ec2", "CreateNatGateway", {}),
    "aws:ec2/placementGroup:PlacementGroup": ("ec2", "CreatePlacementGroup", {NAME: "GroupName"}),
    "aws:ec2/routeTable:RouteTable": ("ec2", "CreateRouteTable", {}),
    "aws:ec2/securityGroup:SecurityGroup": ("ec2", "CreateSecurityGroup", {NAME: "GroupName", ABOUT: "Description"}),
    "aws:ec2/subnet:Subnet": ("ec2", "CreateSubnet", {}),
    "aws:ec2/vpc:Vpc": ("ec2", "CreateVpc", {}),
    "aws:ec2/vpcEndpoint:VpcEndpoint": ("ec2", "CreateVpcEndpoint", {}),
    "aws:ec2/vpcPeeringConnection:VpcPeeringConnection": ("ec2", "CreateVpcPeeringConnection", {}),
    "aws:ecr/repository:Repository": ("ecr", "CreateRepository", {NAME: "repositoryName"}),
    "aws:eks/accessEntry:AccessEntry": ("eks", "CreateAccessEntry", {}),
    "aws:eks/addon:Addon": ("eks", "CreateAddon", {}),
    "aws:eks/cluster:Cluster": ("eks", "CreateCluster", {NAME: "name"}),
    "aws:eks/nodeGroup:NodeGroup": ("eks", "CreateNodegroup", {"nodeGroupName": "nodegroupName"}),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": ("eks", "CreatePodIdentityAssociation", {}),
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": ("fsx", "CreateDataRepositoryAssociation", {}),
    "aws:fsx/lustreFileSystem:LustreFileSystem": ("fsx", "CreateFileSystem", {}),
    "aws:iam/instanceProfile:InstanceProfile": ("iam", "CreateInstanceProfile", {NAME: "InstanceProfileName"}),
    "aws:iam/policy:Policy": ("iam", "CreatePolicy", {NAME: "PolicyName", ABOUT: "Description"}),
    "aws:iam/role:Role": ("iam", "CreateRole", {NAME: "RoleName", ABOUT: "Description"}),
    "aws:iam/rolePolicy:RolePolicy": ("iam", "PutRolePolicy", {NAME: "PolicyName"}),
    "aws:kms/alias:Alias": ("kms", "CreateAlias", {NAME: "AliasName"}),
    "aws:kms/key:Key": ("kms", "CreateKey", {ABOUT: "Description"}),
    "aws:s3/bucket:Bucket": ("s3", "PutBucketTagging", {}),
    "aws:scheduler/schedule:Schedule": ("scheduler", "CreateSchedule", {NAME: "Name", ABOUT: "Description"}),
    "aws:sns/topic:Topic": ("sns", "CreateTopic", {NAME: "Name"}),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": ("ec2", "AuthorizeSecurityGroupEgress", {}),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": ("ec2", "AuthorizeSecurityGroupIngress", {}),
}
"""Pulumi's type -> service, call, and its members that receive texts."""
TAGS: dict[str, Any] = {
    "budgets": lambda tags: {"ResourceTags": [{"Key": key, "Value": value} for key, value in tags.items()]},
    "codebuild": lambda tags: {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
    "ec2": lambda tags: {"TagSpecifications": [{"Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}]},
    "ecr": lambda tags: {"tags": [{"Key": key, "Value": value} for key, value in tags.items()]},
    "eks": lambda tags: {"tags": tags},
    "kms": lambda tags: {"Tags": [{"TagKey": key, "TagValue": value} for key, value in tags.items()]},
    "logs": lambda tags: {"tags": tags},
    "s3": lambda tags: {"Tagging": {"TagSet": [{"Key": key, "Value": value} for key, value in tags.items()]}},
}
"""Service -> the form of its tags, where it is not a list `Tags` of Key and Value."""


def refusals(node: Node, tags: dict[str, str]) -> Iterator[str]:
    """Yield what AWS says to a resource's own texts, and to these tags if it can have any."""
    service, operation, members = CALLS[node.type]
    model = get_service_model(service).operation_model(operation)
    tags = tags | {str(key): str(value) for key, value in (node.inputs.get("tags") or {}).items()}
    form = TAGS.get(service, lambda tags: {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]})
    request: dict[str, Any] = {key: value for key, value in form(tags).items() if key in model.input_shape.members}
    for given, member in members.items():
        outer, _, inner = member.rpartition(".")
        if isinstance(text := node.inputs.get(given), str):
            request |= {outer: {inner: text}} if outer else {inner: text}
    try:
        refuse_unfit(service, model, request)
    except RequestRefused as error:
        yield f"{node}: {error}"


def texts(graph: Graph) -> Iterator[tuple[Node, dict[str, str]]]:
    """Yield resources of AWS with a text that somebody reads, and the tags that their provider gives them."""
    by_default = {node.urn: json.loads(node.inputs["defaultTags"])["tags"] for node in graph.of("aws")}
    for node in graph.custom:
        if node.type in CALLS or (node.type.startswith("aws:") and {"tags", NAME, ABOUT} & set(node.inputs)):
            yield node, by_default[node.provider.rpartition("::")[0]]


@pytest.fixture(scope="module")
def longest() -> Graph:
    """The longest texts that a spec may have, of letters from beyond ASCII."""
    spec = example_spec(
        campaign="c" * MAX_NAME,
        owner=("Zoë 王 ada@example.com " * 20)[:LONGEST_TAG],
        encryption={"customer_key": True, "key_arn": KEY},
        money={"alarm_email": "someone@example.com", "freeze_roles": ["ci"]},
    )
    return campaign_graph(spec, key_arn=KEY)


def test_aws_takes_every_tag_name_and_description(longest: Graph, full: Graph) -> None:
    rows = [row for graph in (longest, full, foundation_with(own_key=True)) for row in texts(graph)]
    assert {node.type for node, _ in rows} == set(CALLS), "what does AWS take of their texts?"
    assert [refusal for node, tags in rows for refusal in refusals(node, tags)] == []


def test_an_owner_that_aws_refuses_would_be_found_here(full: Graph) -> None:
    wrong = {OWNER_TAG: "ann (ml, eu)"}
    services = {CALLS[node.type][0] for node, _ in texts(full) if list(refusals(node, wrong))}
    assert services == {"fsx", "iam", "logs"}
