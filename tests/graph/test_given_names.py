"""Every name that the program gives is known to the look for what was left, for the very kind that has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.inventory import Knowledge
from infra.kinds import Thing
from infra.spec.names import Names
from tests.example import example_spec
from tests.graph.engine import Graph, Node, campaign_graph

KINDS = {
    "Budget": "budget",
    "Cluster": "cluster",
    "Eip": "elastic address",
    "InternetGateway": "internet gateway",
    "LaunchTemplate": "launch template",
    "LogGroup": "log group",
    "LustreFileSystem": "file system",
    "NatGateway": "NAT gateway",
    "PlacementGroup": "placement group",
    "Policy": "policy",
    "Role": "role",
    "RouteTable": "route table",
    "Schedule": "schedule",
    "SecurityGroup": "security group",
    "Subnet": "subnet",
    "Topic": "topic",
    "Vpc": "VPC",
    "VpcEndpoint": "VPC endpoint",
    "VpcPeeringConnection": "VPC peering",
}
"""Kind of Pulumi's resource -> the kind that the look calls it."""
LAUNCHED = {"instance": "instance", "volume": "volume", "network-interface": "network interface"}


def names_in(node: Node) -> Iterator[tuple[str, str]]:
    kind, given = KINDS.get(node.type.rpartition(":")[2], str(node)), node.inputs
    for name in (given.get("name"), (given.get("tags") or {}).get("Name")):
        if name is not None and "bivouac-example" in name:
            yield kind, name
    for each in given.get("tagSpecifications") or ():
        yield LAUNCHED[each["resourceType"]], each["tags"]["Name"]


@pytest.mark.parametrize("endpoints", [False, True])
def test_each_name_of_the_program_is_evidence_for_its_campaign(full: Graph, endpoints: bool) -> None:
    graph = campaign_graph(example_spec(network={"egress": "endpoints"})) if endpoints else full
    rows = {row for node in graph.custom if node.type.startswith("aws:") for row in names_in(node)}
    assert {"role", "subnet", "security group", "VPC endpoint", "volume"} <= {kind for kind, _ in rows}
    knowledge = Knowledge(Names("example"))
    missed = [row for row in rows if not knowledge.judge({row[0]: [Thing("id", row[1])]})[row[0]]]
    assert not missed
