"""Manifests of EKS as they are sent to an existing cluster, and that cluster's nodes as the steward sees them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import yaml
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Pod

from infra.cluster import attempts
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL
from infra.cluster.standing.borrowed import BorrowedNodes
from infra.cluster.standing.placing import placed
from infra.errors import PermanentError
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
    claims = {
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    }
    assert claims == {"scratch", "local"}


@pytest.mark.parametrize("document", [pods.copy(), pods.fetch()])
def test_a_copy_takes_no_device(document: dict[str, Any]) -> None:
    assert "resources" not in placed_pod(document)["containers"][0]


@pytest.mark.parametrize("document", [pods.archive(), pods.copy(), pods.fetch()])
def test_a_job_leaves_a_dead_node_by_itself_and_comes_to_none_that_is_left_out(document: dict[str, Any]) -> None:
    """The steward ends a gang; nobody but Kubernetes ends the pod of such a Job."""
    pod = placed(document, CLUSTER, ("rack-1",))["spec"]["template"]["spec"]
    waits = {row["key"]: row.get("tolerationSeconds") for row in pod["tolerations"] if row.get("effect") == "NoExecute"}
    assert waits == {"node.kubernetes.io/unreachable": 60, "node.kubernetes.io/not-ready": 60}
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["rack-1"]}]


@pytest.mark.parametrize("document", [pods.archive(), pods.gang()])
def test_the_folder_of_a_node_is_the_namespaces_own(document: dict[str, Any]) -> None:
    spec = placed(document, CLUSTER)["spec"]
    template = spec["template"] if "template" in spec else spec["replicatedJobs"][0]["template"]["spec"]["template"]
    containers = [*template["spec"]["containers"], *template["spec"].get("initContainers", ())]
    mounts = [mount for container in containers for mount in container["volumeMounts"] if mount["name"] == "local"]
    assert mounts and {mount["subPath"] for mount in mounts} == {"team-a"}


def test_a_gang_by_mpirun_is_placed_once_in_each_of_its_templates() -> None:
    replicas = placed(pods.mpi_gang(), CLUSTER, ("rack-1", "rack-2"))["spec"]["mpiReplicaSpecs"]
    assert set(replicas) == {"Launcher", "Worker"}
    for replica in replicas.values():
        pod = replica["template"]["spec"]
        folders = {mount["subPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "shared"}
        assert folders == {"bivouac/team-a/example/data", "bivouac/team-a/example/checkpoints"}
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert [field["values"] for field in term["matchFields"]] == [["rack-1"], ["rack-2"]]


def nodes_with(**changes: Any) -> BorrowedNodes:
    document = {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "rack-1", "labels": changes.get("labels", {})},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]} | changes.get("spec", {}),
        "status": {"conditions": [{"type": "Ready", "status": changes.get("ready", "True"),
                                   "lastTransitionTime": changes.get("since", "2026-11-27T00:00:00Z")}],
                   "allocatable": {"nvidia.com/gpu": changes.get("gpus", "8")}},
    }  # fmt: skip
    asked: list[dict[str, str]] = []

    def listed(kind: Any, labels: dict[str, str], fields: dict[str, str] | None = None) -> list[Any]:
        if kind is Pod:
            return []
        asked.append(labels)
        return [from_dict(document)]

    borrowed_nodes = BorrowedNodes(SimpleNamespace(list=listed), CLUSTER, "on-racks", 4)  # type: ignore[arg-type]
    borrowed_nodes.facts()
    assert asked == [{"gpu": "h100"}]
    return borrowed_nodes


_EKS = {f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}" for layer in (1, 2, 3)}
_EARLIER = {f"network.topology.nvidia.com/{layer}": layer for layer in ("leaf", "spine", "accelerator")}
_TIERS = {f"fabric.topograph.run/tier-{tier}": f"switch-{tier}" for tier in (0, 1, 10)}


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ({"gpu": "h100"}, ()),
        (_EKS, ("nn-1", "nn-2", "nn-3")),
        (_EARLIER, ("spine", "leaf")),
        (_TIERS, ("switch-10", "switch-1", "switch-0")),
        (_EKS | _EARLIER | _TIERS, ("switch-10", "switch-1", "switch-0")),
    ],
)
def test_the_order_of_ranks_follows_the_labels_of_whoever_knows_the_network(
    labels: dict[str, str], place: tuple[str, ...]
) -> None:
    (facts,) = nodes_with(labels=labels).facts()
    assert facts.network == place


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-27T{clock}:00+00:00")


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


@pytest.mark.parametrize(
    ("changes", "died_at", "is_back"),
    [
        ({"since": "2026-11-27T08:01:00Z"}, at("08:00"), True),
        ({"since": "2026-11-27T07:59:00Z"}, at("08:00"), False),  # Kubernetes has not noticed the death yet
        ({"since": "2026-11-27T08:01:00Z", "ready": "Unknown"}, at("08:00"), False),
        ({"since": "2026-11-27T08:01:00Z"}, None, False),  # it computed wrongly
    ],
)
def test_a_node_that_was_dead_comes_back_once_it_is_ready_again(
    changes: dict[str, Any], died_at: datetime | None, is_back: bool
) -> None:
    nodes = nodes_with(**changes)
    nodes.quarantine("rack-1", "replaced", died_at)
    nodes.replace("rack-1")
    (facts,) = nodes.facts()
    assert facts.quarantined is not is_back and facts.fit(8) is is_back
    assert nodes.left_out == (() if is_back else ("rack-1",))
    # What an attempt said of the dead node does not hold for the one that came back.
    assert (facts.instance != "rack-1") is is_back


def test_a_node_that_came_back_can_be_given_up_again() -> None:
    nodes = nodes_with(since="2026-11-27T08:01:00Z")
    nodes.quarantine("rack-1", "replaced", at("08:00"))
    (facts,) = nodes.facts()
    nodes.quarantine("rack-1", "replaced")
    assert not nodes.replace(facts.instance) and nodes.left_out == ("rack-1",)


def test_no_node_is_asked_for_released_or_ended() -> None:
    nodes = nodes_with()
    assert nodes.desired() == 4 and not nodes.set_desired(0) and nodes.desired() == 4
    assert nodes.held() == frozenset() and nodes.launched() == () and not nodes.release("rack-1")


@dataclass
class Shelf:
    """A namespace with one config map, `steward`, of this campaign or of nobody's."""

    owner: str | None
    namespace: str = "team-a"
    replaced: list[Any] = field(default_factory=list)

    def create(self, config: Any) -> None:
        status = {"code": 409, "message": "already exists"}
        raise ApiError(response=httpx2.Response(409, json=status, request=httpx2.Request("POST", "http://racks")))

    def get(self, kind: Any, name: str) -> ConfigMap:
        labels = None if self.owner is None else {"bivouac.dev/campaign": self.owner}
        return ConfigMap(metadata=ObjectMeta(name=name, labels=labels), data={"a": "theirs"})

    def replace(self, config: Any) -> None:
        self.replaced.append(config.data)


@pytest.mark.parametrize(("owner", "words"), [(None, "somebody else"), ("other", "campaign other")])
def test_a_config_map_of_somebody_elses_is_left_as_it_is(owner: str | None, words: str) -> None:
    shelf = Shelf(owner)
    with pytest.raises(PermanentError, match=f"steward in namespace team-a, of {words}"):
        attempts.create_config(shelf, "steward", {"bivouac.dev/campaign": "mine"}, {"a": "ours"})  # type: ignore[arg-type]
    assert shelf.replaced == []


def test_a_config_map_of_the_campaigns_own_is_replaced() -> None:
    shelf = Shelf("mine")
    attempts.create_config(shelf, "steward", {"bivouac.dev/campaign": "mine"}, {"a": "ours"})  # type: ignore[arg-type]
    assert shelf.replaced == [{"a": "ours"}]


def pod_of(name: str, leaving: bool, **labels: str) -> Pod:
    since = datetime(2026, 11, 27, tzinfo=UTC) if leaving else None
    return Pod(metadata=ObjectMeta(name=name, labels=labels, deletionTimestamp=since))


def test_pods_that_wait_for_a_dead_node_go_so_that_the_next_gang_fits_the_quota() -> None:
    """Of an ended gang, on that node alone: neither its steward nor a pod that nobody has deleted."""
    gang = {ATTEMPT_LABEL: "1"}
    pods = [pod_of("rank-1", True, **gang), pod_of("rank-2", False, **gang), pod_of("steward", True, app="steward")]
    asked, gone = list[Any](), list[tuple[str, int]]()

    def listed(kind: Any, labels: dict[str, str], fields: dict[str, str] | None = None) -> list[Any]:
        if kind is Pod:
            asked.append((labels, fields))
        return [pod for pod in pods if str(pod.metadata.name if pod.metadata else "") not in dict(gone)] * (kind is Pod)

    def delete(kind: Any, name: str, grace_period: int) -> None:
        gone.append((name, grace_period))

    client: Any = SimpleNamespace(list=listed, delete=delete)
    nodes = BorrowedNodes(client, CLUSTER, "on-racks", 4)
    nodes.facts()
    assert asked == []
    nodes.replace("rack-1")
    nodes.facts()
    assert gone == [("rank-1", 0)] and asked == [({CAMPAIGN_LABEL: "on-racks"}, {"spec.nodeName": "rack-1"})]
    del pods[1]
    nodes.facts()
    nodes.facts()
    assert len(asked) == 2, "nothing of a gang is left there"
