"""Manifests of EKS as they are sent to an existing cluster, and that cluster's nodes as the steward sees them."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from lightkube.codecs import from_dict

from infra.cluster.borrowed import BorrowedNodes
from infra.cluster.placing import placed
from infra.spec.standing import StandingCluster
from tests import pods
from tests.root import ROOT

SPEC: dict[str, Any] = yaml.safe_load((ROOT / "tests/unit/standing/standing.yaml").read_text())
CLUSTER = StandingCluster.model_validate(SPEC["cluster"])


def placed_pod(document: dict[str, Any]) -> dict[str, Any]:
    before = copy.deepcopy(document)
    made = placed(document, CLUSTER)
    assert document == before and placed(document, None) is document
    assert before["metadata"]["namespace"] == "campaign" and made["metadata"]["namespace"] == "team-a"
    pod: dict[str, Any] = made["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "s3-login"}}]
    return pod


def test_the_archive_takes_a_nodes_devices_and_writes_to_s3() -> None:
    pod = placed_pod(pods.archive())
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "8"}
    claims = {one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one}
    assert claims == {"scratch", "local"}


@pytest.mark.parametrize("document", [pods.copy(), pods.fetch()])
def test_a_copy_takes_no_device(document: dict[str, Any]) -> None:
    assert "resources" not in placed_pod(document)["containers"][0]


def test_a_gang_by_mpirun_is_placed_once_in_each_of_its_templates() -> None:
    replicas = placed(pods.mpi_gang(), CLUSTER, ("rack-1", "rack-2"))["spec"]["mpiReplicaSpecs"]
    assert set(replicas) == {"Launcher", "Worker"}
    for replica in replicas.values():
        pod = replica["template"]["spec"]
        folders = {one["subPath"] for one in pod["containers"][0]["volumeMounts"] if one["name"] == "shared"}
        assert folders == {"bivouac/example/data", "bivouac/example/checkpoints"}
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert [field["values"] for field in term["matchFields"]] == [["rack-1"], ["rack-2"]]


def nodes_with(**changes: Any) -> BorrowedNodes:
    document = {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "rack-1"},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]} | changes.get("spec", {}),
        "status": {"conditions": [{"type": "Ready", "status": changes.get("ready", "True")}],
                   "allocatable": {"nvidia.com/gpu": changes.get("gpus", "8")}},
    }  # fmt: skip
    asked: list[dict[str, str]] = []

    def listed(kind: Any, labels: dict[str, str]) -> list[Any]:
        asked.append(labels)
        return [from_dict(document)]

    made = BorrowedNodes(SimpleNamespace(list=listed), CLUSTER, 4)  # type: ignore[arg-type]
    made.facts()
    assert asked == [{"gpu": "h100"}]
    return made


@pytest.mark.parametrize(
    ("changes", "unfit"),
    [
        ({}, ""),
        ({"ready": "Unknown"}, "not Ready"),
        ({"gpus": "7"}, "7 of 8 accelerators allocatable"),
        ({"spec": {"unschedulable": True}}, "cordoned by its owner"),
        ({"spec": {"taints": [{"key": "maintenance", "effect": "NoExecute"}]}}, "tainted maintenance:NoExecute"),
        ({"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}}, ""),
        ({"spec": {"taints": [{"key": "spot", "effect": "PreferNoSchedule"}]}}, ""),
    ],
)
def test_a_borrowed_node_is_unfit_for_what_keeps_our_pods_off(changes: dict[str, Any], unfit: str) -> None:
    (facts,) = nodes_with(**changes).facts()
    assert (facts.unfit(8), facts.fit(8)) == (unfit, not unfit)


@pytest.mark.parametrize("give_up", ["quarantine", "replace"])
def test_a_node_that_is_given_up_is_left_out_and_stays_as_it_is(give_up: str) -> None:
    nodes = nodes_with()
    assert nodes.left_out == ()
    if give_up == "replace":
        assert not nodes.replace("rack-1")
    else:
        nodes.quarantine("rack-1", "dead")
    (facts,) = nodes.facts()
    assert nodes.left_out == ("rack-1",) and facts.quarantined and facts.unfit(8) == "left out by us"


def test_no_node_is_asked_for_released_or_ended() -> None:
    nodes = nodes_with()
    assert nodes.desired() == 4 and not nodes.set_desired(0) and nodes.desired() == 4
    assert nodes.held() == frozenset() and nodes.launched() == () and not nodes.release("rack-1")
