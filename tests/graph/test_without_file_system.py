"""A campaign without a shared file system: nothing of FSx, no client of it, no claim on it, and the rights for S3."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.archive import archive_job
from infra.campaign import basics
from infra.campaign.launch import steward_pod
from infra.cluster.gang import jobset
from infra.spec.names import GPU_POOL, SYSTEM_POOL
from infra.stack.lustre import client_script
from infra.stack.rules import broken, findings
from tests.example import example_spec
from tests.graph.engine import Graph, campaign_graph
from tests.graph.nodes.test_lustre_client import ARCHIVE, GANG, mounts_shared, pods, scripts

SPEC = example_spec(
    storage={"shared": "none"}, image={"base": "bivouac/base:cuda", "nodes": "eks"}, network={"egress": "endpoints"}
)
TIER = "s3://bivouac-archive-123456789012-us-east-1/copies/example/id"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return campaign_graph(SPEC)


def test_nothing_of_the_stack_is_of_fsx_or_lustre(graph: Graph) -> None:
    named = [node for node in graph.custom if "fsx" in node.type.lower() or "lustre" in node.name.lower()]
    named += [node for node in graph.custom if node.name in ("aws-fsx-csi-driver", "shared", "fsx")]
    assert not named, [str(node) for node in named]
    assert {one.name for one in graph.of("SecurityGroup")} == {"nodes", "endpoints"}
    for pool in (SYSTEM_POOL, GPU_POOL):
        assert not [script for script in scripts(graph, pool) if "lustre" in script.lower()]
    text = json.dumps([node.inputs for node in graph.custom], default=str)
    assert "fsx" not in text.lower(), "a role, an endpoint or a tag names it"


def test_with_a_file_system_the_same_spec_has_all_of_it() -> None:
    whole = campaign_graph(SPEC.model_copy(update={"storage": example_spec().storage}))
    assert whole.of("LustreFileSystem") and whole.one("Addon", "aws-fsx-csi-driver")
    assert whole.one("PersistentVolume", "shared") and client_script() in scripts(whole, SYSTEM_POOL)


def test_the_rules_of_the_graph_hold(graph: Graph) -> None:
    assert not broken(findings(graph.asked, SPEC))


def test_the_outputs_name_no_file_system(graph: Graph) -> None:
    assert graph.outputs["file_system_id"] is None and graph.outputs["mount_name"] is None


def test_no_pod_claims_the_shared_volume() -> None:
    gang = jobset(GANG.model_copy(update={"shares": False}))
    archive = archive_job.manifest(ARCHIVE.model_copy(update={"shared_tier": TIER}), "i", 8)
    manifests = [steward_pod("i", 0, 2, shares=False), gang, archive, basics.manifest("i", {}, shares=False)]
    found = [pod for manifest in manifests for pod in pods(manifest)]
    assert len(found) == len(manifests) and not any(mounts_shared(pod) for pod in found)
    for pod in found:
        volumes = {volume["name"] for volume in pod["volumes"]}
        used = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert used <= volumes, "a container mounts what the pod does not have"


def statements(graph: Graph, role: str) -> list[dict[str, Any]]:
    policies = [one for one in graph.of("RolePolicy") if one.name == role]
    return [statement for policy in policies for statement in json.loads(policy.inputs["policy"])["Statement"]]


def allowed(graph: Graph, role: str, action: str) -> set[str]:
    resources = (statement["Resource"] for statement in statements(graph, role) if action in statement["Action"])
    return {arn for arns in resources for arn in arns}


def test_the_ranks_may_write_the_campaigns_copies_and_read_the_data_and_nothing_else(graph: Graph) -> None:
    copies = "arn:aws:s3:::bivouac-archive-123456789012-us-east-1/copies/example/*"
    data = "arn:aws:s3:::bivouac-data-123456789012-us-east-1/datasets/*"
    for action in ("s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"):
        assert allowed(graph, "trainer", action) == {copies}, action
    assert allowed(graph, "trainer", "s3:GetObject") == {copies, data}
    actions = {action for statement in statements(graph, "trainer") for action in statement["Action"]}
    assert not {action for action in actions if not action.startswith(("s3:", "kms:"))}
    assert allowed(graph, "steward", "s3:PutObject").isdisjoint({copies})
    assert not campaign_graph(example_spec()).of("RolePolicy") or not statements(
        campaign_graph(example_spec()), "trainer"
    )
