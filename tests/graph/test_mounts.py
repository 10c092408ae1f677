"""Mounts with volumes of their own over the graph: S3 by Mountpoint, and a file system that exists."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.errors import UserError
from infra.spec.campaign import Spec
from infra.stack.rules import Level, findings
from tests.example import example_spec
from tests.graph.engine import Graph, campaign_graph, held
from tests.graph.test_existing_network import NETWORK

FSX = "fs-0123456789abcdef0"
MOUNTS: dict[str, Any] = {
    "plain": "s3://somebodys/plain",
    "shards": {"s3": "s3://somebodys/shards/v2/", "by": "mountpoint"},
    "team": {"fsx": FSX, "path": "/datasets"},
    "out": {"fsx": FSX, "path": "/out", "writable": True},
}


def spec_with(mounts: dict[str, Any], **sections: Any) -> Spec:
    job = {
        "script": "/train.py", "checkpoints": {"format": "marker"}, "estimates": {"steps": 9, "step_seconds": 1},
        "mounts": mounts,
    }  # fmt: skip
    return example_spec(training=None, data=None, workload=job, **sections)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return campaign_graph(spec_with(MOUNTS), mount_names=f"{FSX}=abcdefgh", mount_groups="sg-1,sg-2")


def volume(graph: Graph, claim: str) -> dict[str, Any]:
    (found,) = [node.inputs for node in graph.of("PersistentVolume") if node.name == claim]
    return found["spec"]


def test_a_prefix_by_mountpoint_is_a_read_only_volume_of_the_pods_own_role(graph: Graph) -> None:
    spec = volume(graph, "mount-shards")
    assert spec["csi"]["driver"] == "s3.csi.aws.com" and spec["persistentVolumeReclaimPolicy"] == "Retain"
    attributes = {"bucketName": "somebodys", "authenticationSource": "pod", "stsRegion": "us-east-1"}
    assert spec["csi"]["volumeAttributes"] == attributes
    assert {"read-only", "prefix shards/v2/", "region us-east-1"} <= set(spec["mountOptions"])
    assert spec["claimRef"] == {"namespace": "campaign", "name": "mount-shards"}
    handles = [
        volume(graph, name)["csi"]["volumeHandle"] for name in ("mount-shards", "mount-team", "mount-out", "shared")
    ]
    assert len(set(handles)) == 4, "a handle that two volumes have is mounted once"


def test_only_the_link_becomes_one_of_the_campaigns_own_file_system(graph: Graph) -> None:
    assert {node.name for node in graph.of("DataRepositoryAssociation")} == {"data", "mount-plain"}


def test_a_folder_of_a_file_system_that_exists_is_a_file_set_and_no_resource(graph: Graph) -> None:
    for name, file_set in (("team", "abcdefgh/datasets"), ("out", "abcdefgh/out")):
        csi = volume(graph, f"mount-{name}")["csi"]
        assert csi["driver"] == "fsx.csi.aws.com"
        assert csi["volumeAttributes"] == {"dnsname": f"{FSX}.fsx.us-east-1.amazonaws.com", "mountname": file_set}
    assert [node.name for node in graph.of("LustreFileSystem")] == ["shared"]
    assert FSX not in json.dumps([node.inputs for node in graph.custom if node.type.startswith("aws:fsx")])


def test_what_the_job_does_not_write_is_mounted_read_only_beside_what_it_does(graph: Graph) -> None:
    assert volume(graph, "mount-out")["mountOptions"] == ["flock"]
    assert volume(graph, "mount-team")["mountOptions"] == ["flock", "ro"]


def let_in(graph: Graph) -> set[tuple[str, int, int]]:
    """Groups and TCP ports that the nodes' group lets in, without those of other protocols."""
    rules = [rule.inputs for rule in graph.of("SecurityGroupIngressRule")]
    return {
        (rule["referencedSecurityGroupId"], rule["fromPort"], rule["toPort"])
        for rule in rules
        if rule["securityGroupId"] == "SecurityGroup-nodes" and rule["ipProtocol"] == "tcp"
    }


def test_nodes_let_in_the_servers_of_a_file_system_that_exists(graph: Graph, campaign: Graph) -> None:
    """AWS's page "File system access control with Amazon VPC": a client's group admits TCP 988 and 1018-1023 from the
    group of the file servers."""
    servers = {(group, first, last) for group in ("sg-1", "sg-2") for first, last in ((988, 988), (1018, 1023))}
    assert let_in(graph) - let_in(campaign) == servers and let_in(campaign) <= let_in(graph)


def test_the_trainers_role_reads_the_prefix_and_nothing_beside_it(graph: Graph) -> None:
    rights = [statement for role, statement in held(graph) if role == "trainer"]
    assert {tuple(right["Action"]): right["Resource"] for right in rights if "kms:Decrypt" not in right["Action"]} == {
        ("s3:ListBucket",): ["arn:aws:s3:::somebodys"],
        ("s3:GetObject",): ["arn:aws:s3:::somebodys/shards/v2/*"],
    }
    (listing,) = [right for right in rights if right["Action"] == ["s3:ListBucket"]]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["shards/v2/*"]}}
    others = [one for role, one in held(graph) if role != "trainer"]
    assert "somebodys" not in json.dumps(others)


def test_the_driver_is_an_add_on_of_campaigns_that_use_it_and_runs_on_tainted_nodes(
    graph: Graph, campaign: Graph
) -> None:
    add_on = graph.one("Addon", "aws-mountpoint-s3-csi-driver").inputs
    assert json.loads(add_on["configurationValues"])["node"] == {"tolerateAllTaints": True}
    assert "aws-mountpoint-s3-csi-driver" not in {node.name for node in campaign.of("Addon")}


def test_in_the_existing_network_that_it_needs_all_rules_are_passed() -> None:
    spec = spec_with(MOUNTS, network=NETWORK, money={"alarm_email": "someone@example.com"})
    found = findings(campaign_graph(spec, mount_names=f"{FSX}=abcdefgh", mount_groups="sg-1").asked, spec)
    assert [one for one in found if one.level is not Level.INFO] == []


def test_only_the_trainers_pods_may_claim_a_mount(graph: Graph, campaign: Graph) -> None:
    def rule(of: Graph) -> str:
        (policy,) = [node.inputs for node in of.of("ValidatingAdmissionPolicy") if node.name == "pods"]
        (found,) = [
            validation["expression"]
            for validation in policy["spec"]["validations"]
            if "claimName" in validation["expression"]
        ]
        return str(found)

    claims = "['mount-out', 'mount-shards', 'mount-team']"
    assert f"'trainer' && v.persistentVolumeClaim.claimName in {claims}" in rule(graph)
    assert "mount-" not in rule(campaign)


def test_without_its_name_a_file_system_is_not_mounted_by_a_guess() -> None:
    with pytest.raises(UserError, match=FSX):
        campaign_graph(spec_with(MOUNTS))
