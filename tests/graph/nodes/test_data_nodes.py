"""The nodes that prepare the data over the graph: there while there are no data, gone with the link to them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.example import example_spec
from tests.graph.engine import ACCOUNT, Graph, campaign_graph, held

MIXTURE = [
    {"name": "web", "source": "s3://texts/web", "weight": 1},
    {"name": "code", "source": "s3://texts/code/", "weight": 1},
    {"name": "notes", "source": "s3://others", "weight": 1},
]
PREPARE = {"where": "cluster", "nodes": 6, "instance_type": "c7i.8xlarge", "capacity": "spot"}
DATA: dict[str, Any] = {"source": "", "mixture": MIXTURE, "prepare": PREPARE}


@pytest.fixture(scope="module")
def before() -> Graph:
    return campaign_graph(example_spec(data=DATA), data_digest=None)


@pytest.fixture(scope="module")
def after() -> Graph:
    return campaign_graph(example_spec(data=DATA))


def test_they_are_spot_nodes_at_zero_that_a_schedule_of_their_own_ends(before: Graph) -> None:
    group = before.one("NodeGroup", "data-nodes").inputs
    assert group["nodeGroupName"] == "bivouac-example-data" and group["capacityType"] == "SPOT"
    assert group["scalingConfig"] == {"minSize": 0, "desiredSize": 0, "maxSize": 6}
    assert before.one("LaunchTemplate", "data-nodes").inputs["instanceType"] == "c7i.8xlarge"
    ends = json.loads(before.one("Schedule", "data").inputs["target"]["input"])
    assert ends["NodegroupName"] == "bivouac-example-data" and ends["ScalingConfig"]["DesiredSize"] == 0
    (right,) = [one for role, one in held(before) if role == "guard" and "eks:UpdateNodegroupConfig" in one["Action"]]
    assert {arn.split("/")[-2] for arn in right["Resource"]} == {"bivouac-example-data", "bivouac-example-gpu"}


def test_with_the_data_they_go_and_the_link_comes(before: Graph, after: Graph) -> None:
    mine = {"data-nodes"}
    assert not before.of("DataRepositoryAssociation")
    assert mine <= {node.name for node in before.of("NodeGroup")}
    assert not mine & {node.name for kind in ("NodeGroup", "LaunchTemplate") for node in after.of(kind)}
    assert "data" not in {node.name for node in after.of("Schedule")}
    assert [node.name for node in after.of("DataRepositoryAssociation")] == ["data"]
    kept = {node.name for node in before.of("NodeGroup")} - mine
    assert kept == {node.name for node in after.of("NodeGroup")}, "nothing else changes"


def test_their_pods_may_read_the_sources_and_write_what_is_prepared(before: Graph) -> None:
    rights = [one for role, one in held(before) if role == "data"]
    data = f"bivouac-data-{ACCOUNT}-us-east-1"
    by_action: dict[str, set[str]] = {}
    for one in rights:
        for action in one["Action"]:
            by_action.setdefault(action, set()).update(one["Resource"])
    assert by_action["s3:GetObject"] == {
        "arn:aws:s3:::texts/web",
        "arn:aws:s3:::texts/web/*",
        "arn:aws:s3:::texts/code",
        "arn:aws:s3:::texts/code/*",
        "arn:aws:s3:::others/*",
        f"arn:aws:s3:::{data}/preparing/*",
    }
    assert by_action["s3:PutObject"] == {f"arn:aws:s3:::{data}/{at}/*" for at in ("preparing", "datasets", "prepared")}
    assert set(by_action) == {"s3:GetObject", "s3:PutObject", "s3:ListBucket", "kms:Decrypt", "kms:GenerateDataKey"}


def test_a_campaign_whose_driver_prepares_has_none_of_it() -> None:
    graph = campaign_graph(example_spec())
    assert not {node.name for node in graph.nodes.values()} & {"data-nodes"}
    assert not [role for role, _ in held(graph) if role == "data"]
