"""How the campaign's pods are confined: those that are made at run time, and those of the stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infra.campaign.launch import steward_pod
from infra.plan.checks.finding import Level
from infra.stack.rules import findings
from infra.stack.rules.graph import Graph
from tests.example import example_spec
from tests.graph.engine import campaign_graph
from tests.graph.test_rules import at, damaged
from tests.pods import IMAGE, archive, gang

SPEC = example_spec(addons={"mpi_operator": True})
NO_ROOT = {"runAsUser": 65532, "runAsGroup": 65532, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
ROOT = {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
BARE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
AS_ROOT = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}


def pods_of(document: Any) -> Iterator[dict[str, Any]]:
    """Every pod's spec in a manifest."""
    if isinstance(document, dict) and "containers" in document:
        yield document
    else:
        for value in (
            document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
        ):
            yield from pods_of(value)


MADE: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]], bool | None]] = {
    "steward": (steward_pod(IMAGE, 0, 2), NO_ROOT, {"steward": {**BARE, "readOnlyRootFilesystem": True}}, None),
    "training": (gang(), ROOT, {"trainer": BARE}, False),
    "a job with secrets": (
        gang(secrets=True, supervisor_image=IMAGE),
        ROOT,
        {"supervisor": BARE, "secrets": {**BARE, "readOnlyRootFilesystem": True}, "trainer": BARE},
        False,
    ),
    "health check": (gang(sees_node=True), ROOT, {"trainer": BARE}, False),
    "archive": (archive(), NO_ROOT, {"room": {**BARE, **AS_ROOT}, "archive": BARE}, False),
}
"""Manifest, security context of its pod and of each container, and whether it carries a key to the API server."""


@pytest.mark.parametrize("name", MADE)
def test_a_pod_of_ours_is_confined_as_written_down_here(name: str) -> None:
    manifest, context, containers, token = MADE[name]
    (pod,) = pods_of(manifest)
    assert pod["securityContext"] == context and pod.get("automountServiceAccountToken") == token
    made = [*pod.get("initContainers", []), *pod["containers"]]
    assert {one["name"]: one["securityContext"] for one in made} == containers


@pytest.mark.parametrize("name", MADE)
def test_no_pod_of_ours_names_a_folder_or_a_namespace_of_its_node(name: str) -> None:
    (pod,) = pods_of(MADE[name][0])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim"}


def test_training_does_not_see_what_the_health_check_reads_of_its_node() -> None:
    def mounted(manifest: dict[str, Any]) -> dict[str, bool]:
        (pod,) = pods_of(manifest)
        return {mount["mountPath"]: mount.get("readOnly", False) for mount in pod["containers"][0]["volumeMounts"]}

    assert "/node" not in mounted(gang()) and mounted(gang(sees_node=True))["/node"] is True


def test_a_job_writes_to_its_nodes_disk_and_no_container_but_its_own_sees_that() -> None:
    (pod,) = pods_of(gang(secrets=True, supervisor_image=IMAGE))
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "local")
    assert volume["persistentVolumeClaim"] == {"claimName": "local"}, "the volume that is another folder on each node"
    seeing = {
        container["name"]: (mount["mountPath"], mount.get("readOnly", False))
        for container in (*pod["initContainers"], *pod["containers"])
        for mount in container["volumeMounts"]
        if mount["name"] == "local"
    }
    assert seeing == {"trainer": ("/local-checkpoints", False)}


def test_secrets_lie_in_the_pods_memory_where_one_container_writes_and_the_job_reads() -> None:
    (pod,) = pods_of(gang(secrets=True, supervisor_image=IMAGE))
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "secrets")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Mi"}
    writers = {container["name"]: container for container in pod["initContainers"]}
    mounts = {
        (container["name"], mount["name"]): (mount["mountPath"], mount.get("readOnly", False))
        for container in (*pod["initContainers"], *pod["containers"])
        for mount in container["volumeMounts"]
    }
    assert {who: how for (who, what), how in mounts.items() if what == "secrets"} == {
        "secrets": ("/bivouac-secrets", False), "trainer": ("/bivouac-secrets", True),
    }  # fmt: skip
    assert {what for who, what in mounts if who == "secrets"} == {"secrets", "config"}
    assert mounts["secrets", "config"] == ("/config", True)
    assert writers["secrets"]["command"] == ["python", "-m", "infra.steward.secrets"]
    assert writers["secrets"]["image"] == IMAGE
    names = {one["name"] for one in writers["secrets"]["env"]}
    assert {"BIVOUAC_ATTEMPT", "BIVOUAC_NODE_NAME"} <= names, "its last words name them"
    (plain,) = pods_of(gang(supervisor_image=IMAGE))
    assert [container["name"] for container in plain["initContainers"]] == ["supervisor"]
    assert "secrets" not in {volume["name"] for volume in plain["volumes"]}


def test_a_job_of_a_private_registry_is_pulled_with_a_login_that_no_container_sees() -> None:
    (pod,), (plain,) = pods_of(gang(pull_secret=True)), pods_of(gang())
    assert pod.pop("imagePullSecrets") == [{"name": "job-image"}] and pod == plain


def test_a_job_in_its_nodes_network_still_finds_its_peers_by_name() -> None:
    (pod,), (plain,) = pods_of(gang(host_network=True)), pods_of(gang())
    assert (pod.pop("hostNetwork"), pod.pop("dnsPolicy")) == (True, "ClusterFirstWithHostNet") and pod == plain


def test_the_namespace_opens_only_for_a_job_in_its_nodes_network_and_closes_the_rest(whole: Graph) -> None:
    workload = {"script": "/train.py", "checkpoints": {"format": "marker"}, "host_network": True,
                "estimates": {"steps": 10, "step_seconds": 1}}  # fmt: skip
    spec = example_spec(training=None, data=None, workload=workload)
    graph = campaign_graph(spec).asked
    level = "pod-security.kubernetes.io/enforce"
    (space,) = (one for one in graph.of("Namespace") if one.name == "campaign")
    assert space.inputs["metadata"]["labels"][level] == "privileged"
    assert not [finding for finding in findings(graph, spec) if finding.rule == "pod-admission"]
    for damage in (None, at("spec.failurePolicy", "Ignore")):
        told = findings(damaged(graph, "ValidatingAdmissionPolicy baseline", damage), spec)
        assert ["bivouac-example-baseline" in one.message for one in told if one.rule == "pod-admission"] == [True]
    opened = damaged(whole, "Namespace campaign", at("metadata.labels", {level: "privileged"}))
    assert [
        "privileged pods" in finding.message for finding in findings(opened, SPEC) if finding.rule == "pod-admission"
    ]


@pytest.fixture(scope="module")
def whole() -> Graph:
    return campaign_graph(SPEC).asked


POD = "spec.template.spec"
CONTAINER = f"{POD}.containers.0.securityContext"


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (f"{POD}.securityContext.runAsNonRoot", False, "runAsNonRoot"),
        (f"{POD}.securityContext.runAsUser", 0, "runAsNonRoot"),
        (f"{POD}.securityContext.seccompProfile", {"type": "Unconfined"}, "seccompProfile"),
        (f"{CONTAINER}.seccompProfile", {"type": "Unconfined"}, "seccompProfile"),
        (f"{CONTAINER}.allowPrivilegeEscalation", True, "allowPrivilegeEscalation"),
        (f"{CONTAINER}.capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, "capabilities"),
        (f"{CONTAINER}.privileged", True, "privileged"),
    ],
)
def test_a_pod_of_the_stack_that_is_not_confined_is_told(whole: Graph, path: str, value: Any, word: str) -> None:
    assert not [finding for finding in findings(whole, SPEC) if finding.rule == "confined-pods"]
    told = findings(damaged(whole, "Deployment mpi-operator", at(path, value)), SPEC)
    assert [word in one.seen for one in told if one.rule == "confined-pods"] == [True]


def test_a_right_to_make_pods_that_may_come_before_its_bounds_is_told(whole: Graph) -> None:
    free = damaged(whole, "RoleBinding steward", None, depends=frozenset(), refers={})
    messages = [finding.message for finding in findings(free, SPEC) if finding.level is Level.ERROR]
    assert messages and all("before its bounds" in message for message in messages if "bounds" in message)
    assert any("before its bounds" in message for message in messages)
