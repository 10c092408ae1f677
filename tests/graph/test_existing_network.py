"""A campaign in an existing VPC: it makes security groups there, and nothing else of a network."""

from __future__ import annotations

from typing import Any

import pytest

from infra.stack.rules import Level, findings
from tests.example import example_spec
from tests.graph.engine import Graph, campaign_graph

VPC, GPU = "vpc-0123456789abcdef1", "subnet-0a0000000000000a0"
CONTROL = ["subnet-0b0000000000000b0", "subnet-0c0000000000000c0"]
NETWORK: dict[str, Any] = {"vpc_id": VPC, "subnet_ids": {"gpu": GPU, "control_plane": CONTROL}}
FOREIGN = ("10.8.0.0/16", "192.168.7.0/24")
OF_A_NETWORK = (
    "Vpc", "Subnet", "RouteTable", "RouteTableAssociation", "Route", "InternetGateway", "NatGateway", "Eip",
    "VpcEndpoint", "VpcPeeringConnection", "NetworkAcl", "VpcDhcpOptions",
)  # fmt: skip


@pytest.fixture(scope="module")
def placed() -> Graph:
    return campaign_graph(example_spec(network=NETWORK))


def test_nothing_of_a_network_is_made_but_the_campaigns_own_groups(placed: Graph, campaign: Graph) -> None:
    assert not placed.of("Vpc") and not [str(node) for kind in OF_A_NETWORK for node in placed.of(kind)]
    kinds = {kind for kind in OF_A_NETWORK if campaign.of(kind)}
    assert kinds >= {"Vpc", "Subnet", "NatGateway", "VpcEndpoint"}, "without a given VPC they are"
    groups = {node.name: node.inputs["vpcId"] for node in placed.of("SecurityGroup")}
    assert groups == {"nodes": VPC, "lustre": VPC}
    rest = {str(node) for node in campaign.custom if node.type.rpartition(":")[2] not in OF_A_NETWORK}
    assert {str(node) for node in placed.custom} == rest, "all else is as it is in a network of its own"


def test_everything_stands_in_the_given_subnets(placed: Graph) -> None:
    (cluster,) = placed.of("Cluster")
    assert cluster.inputs["vpcConfig"]["subnetIds"] == CONTROL
    assert placed.one("NodeGroup", "gpu-nodes").inputs["subnetIds"] == [GPU]
    assert placed.one("NodeGroup", "system-nodes").inputs["subnetIds"] == CONTROL[:1]
    assert placed.one("LustreFileSystem", "shared").inputs["subnetIds"] in (GPU, [GPU])
    outputs = placed.outputs
    assert (outputs["vpc_id"], outputs["gpu_subnet_id"], outputs["network_made"]) == (VPC, GPU, False)


def test_efa_has_its_rules_to_itself_both_ways_in_the_existing_vpc(placed: Graph) -> None:
    group = placed.one("SecurityGroup", "nodes")
    for kind, name in (("SecurityGroupIngressRule", "nodes-self-in"), ("SecurityGroupEgressRule", "nodes-self-out")):
        rule = placed.one(kind, name).inputs
        assert rule["securityGroupId"] == rule["referencedSecurityGroupId"] and rule["ipProtocol"] == "-1"
        assert rule["securityGroupId"].endswith(group.name)
    (template,) = [one for one in placed.of("LaunchTemplate") if one.name == "gpu-nodes"]
    assert all(
        rule["securityGroupId"] in interface["securityGroups"] for interface in template.inputs["networkInterfaces"]
    )


PRIVATE = {"api_endpoint": "private", "api_allowed_cidrs": list(FOREIGN)}


@pytest.mark.parametrize("more", [{}, {"egress": "endpoints"}, PRIVATE], ids=str)
def test_a_campaign_in_an_existing_network_passes_all_rules(more: dict[str, Any]) -> None:
    spec = example_spec(network=NETWORK | more, money={"alarm_email": "someone@example.com"})
    found = findings(campaign_graph(spec).asked, spec)
    assert [one for one in found if one.level is not Level.INFO] == []


def test_a_private_endpoint_admits_the_drivers_ranges_by_https_and_nobody_else() -> None:
    spec = example_spec(network=NETWORK | PRIVATE)
    graph = campaign_graph(spec)
    doors = [one.inputs for one in graph.of("SecurityGroupIngressRule") if one.inputs.get("cidrIpv4")]
    assert {door["cidrIpv4"] for door in doors} == set(FOREIGN)
    assert {(door["ipProtocol"], door["fromPort"], door["toPort"]) for door in doors} == {("tcp", 443, 443)}
    (cluster,) = graph.of("Cluster")
    assert not cluster.inputs["vpcConfig"]["endpointPublicAccess"]
    assert "publicAccessCidrs" not in cluster.inputs["vpcConfig"]


def test_nodes_or_a_file_system_elsewhere_than_the_given_subnet_are_told(placed: Graph) -> None:
    named = {**NETWORK, "subnet_ids": {"gpu": "subnet-0d0000000000000d0", "control_plane": CONTROL}}
    found = findings(placed.asked, example_spec(network=named))
    told = {one.resource: one.seen for one in found if one.rule == "one-zone"}
    assert len(told) == 2 and all(GPU in seen for seen in told.values())
