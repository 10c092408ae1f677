"""What `check --online` hears of a real API server, and that it makes nothing there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap, Node, Pod
from lightkube.resources.node_v1 import RuntimeClass
from lightkube.types import PatchType
from typer.testing import CliRunner

from infra.cli.main import app
from infra.cluster.kubernetes import JobSet
from infra.cluster.standing.connection import connect
from infra.standing.look import look
from infra.standing.openings import openings
from tests.root import ROOT
from tests.worlds.control_plane import config, plane
from tests.worlds.standing.cluster import (
    OTHERS,
    SPACE,
    SPEC,
    SPEC_FILE,
    STRANGER,
    Cluster,
    asked,
    cluster,
    install_jobset,
    spec,
)

__all__ = ["cluster", "config", "plane"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]


def test_a_login_without_the_grant_hears_which_rights_it_lacks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = asked(cluster.tenant(monkeypatch, STRANGER, OTHERS))
    assert seen.user == f"system:serviceaccount:{OTHERS}:{STRANGER}"
    assert f"get secrets s3-login in namespace {SPACE}" in seen.missing_rights
    assert "get, list nodes in the cluster" in seen.missing_rights
    assert (seen.nodes, seen.dry_runs) == (None, ())


def test_check_hears_all_that_the_cluster_would_refuse_and_makes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_jobset(cluster)
    tenant = cluster.tenant(monkeypatch)
    seen = asked(tenant)
    assert seen.missing_rights == () and seen.volume == ""
    assert seen.nodes is not None and [node.name for node in seen.nodes] == ["rack-1"]
    assert "AWS_SECRET_ACCESS_KEY" in seen.bucket
    assert len(seen.dry_runs) == 5 and {one.refusal for one in seen.dry_runs} == {""}
    for kind in (Pod, JobSet, Deployment):
        assert list(tenant.list(kind)) == []


def test_the_command_shows_the_clusters_answers_at_the_fields(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node of four, which no kubelet has made ready, and a Secret that lacks a key."""
    install_jobset(cluster)
    cluster.tenant(monkeypatch)
    shown = CliRunner().invoke(app, ["check", str(ROOT / SPEC_FILE), "--online", "--json"])
    findings = {row["field"]: row for row in json.loads(shown.stdout)["findings"] if row["level"] == "error"}
    assert set(findings) == {"cluster.nodes", "cluster.s3"} and shown.exit_code == 64
    assert "0 of 4; rack-1: not Ready" in findings["cluster.nodes"]["seen"]


def test_check_hears_that_the_cluster_has_no_jobset(cluster: Cluster) -> None:
    assert cluster.without_jobset is not None
    refusals = {one.what: one.refusal for one in cluster.without_jobset.dry_runs if one.refusal}
    assert set(refusals) == {"the gang of the health check"}
    assert "jobset.x-k8s.io/v1alpha2 JobSet: " in refusals["the gang of the health check"]


def test_check_hears_of_a_quota_that_others_have_filled(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jobset(cluster)
    tenant = cluster.tenant(monkeypatch)
    resources = {"limits": {"nvidia.com/gpu": "32"}}
    security = {"allowPrivilegeEscalation": False}
    container = {"name": "one", "image": "one", "resources": resources, "securityContext": security}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy", "namespace": SPACE},
           "spec": {"containers": [container]}}  # fmt: skip
    cluster.admin.create(from_dict(pod))
    try:
        refusals = {one.what: one.refusal for one in asked(tenant).dry_runs}
        assert "exceeded quota" in refusals["a pod of the gang"]
        assert refusals["the steward's pod"] == ""
        assert tenant.get(Pod, "greedy").metadata is not None
    finally:
        cluster.admin.delete(Pod, "greedy", namespace=SPACE, grace_period=0)


def test_check_hears_of_a_name_that_others_hold_and_leaves_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server takes a dry run for an object that stands for granted, whoever's it is."""
    install_jobset(cluster)
    tenant = cluster.tenant(monkeypatch)
    own, others = {"bivouac.dev/campaign": "on-racks"}, {"bivouac.dev/campaign": "elsewhere"}
    for name, labels in (("steward", others), ("archive", {}), ("preflight", own)):
        metadata = ObjectMeta(name=name, namespace=SPACE, labels=labels)
        cluster.admin.create(ConfigMap(metadata=metadata, data={"a": "1"}))
    try:
        seen = asked(tenant)
        assert {(one.kind, one.name, one.campaign) for one in seen.held_names} == {
            ("ConfigMap", "steward", "elsewhere"), ("ConfigMap", "archive", "")
        }  # fmt: skip
        contents = [tenant.get(ConfigMap, name).data for name in ("steward", "archive", "preflight")]
        assert contents == [{"a": "1"}] * 3
    finally:
        for name in ("steward", "archive", "preflight"):
            cluster.admin.delete(ConfigMap, name, namespace=SPACE)


def test_a_runtime_class_is_asked_of_the_cluster_and_shapes_the_gangs_pods(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class sets what its sandbox takes and where it runs; a selector against the spec's nodes is refused."""
    install_jobset(cluster)
    cluster.tenant(monkeypatch)
    wanted = spec(cluster=SPEC["cluster"] | {"nodes": SPEC["cluster"]["nodes"] | {"runtime_class": "nvidia"}})
    section = wanted.cluster
    assert section is not None
    documents = dict(openings(wanted, section))

    def refusals() -> dict[str, str]:
        seen = look(wanted, section, tuple(documents.items()), lambda words: None)
        return {answer.what: answer.refusal for answer in seen.dry_runs if answer.refusal}

    absent = refusals()
    assert list(absent) == ["a pod of the gang"]
    assert 'RuntimeClass "nvidia" not found' in absent["a pod of the gang"]
    overhead = {"podFixed": {"cpu": "250m"}}
    taint = {"key": "sandbox", "operator": "Exists", "effect": "NoSchedule"}

    def runtime_class(labels: dict[str, str]) -> Any:
        place = {"nodeSelector": labels, "tolerations": [taint]}
        return RuntimeClass.from_dict(
            {"metadata": {"name": "nvidia"}, "handler": "nvidia", "overhead": overhead, "scheduling": place}
        )

    cluster.admin.create(runtime_class({"gpu": "a100"}))
    try:
        assert "conflict" in refusals()["a pod of the gang"]
        cluster.admin.delete(RuntimeClass, "nvidia")
        cluster.admin.create(runtime_class({"sandbox": "yes"}))
        assert refusals() == {}
        room = {"status": {"allocatable": {"nvidia.com/gpu": "8", "rdma/hca": "8", "cpu": "300m"}}}
        cluster.admin.patch(Node.Status, "rack-1", room, patch_type=PatchType.MERGE)
        pod: Any = connect(section, dry_run=True).create(from_dict(documents["a pod of the gang"]))
        assert pod.spec.runtimeClassName == "nvidia" and pod.spec.overhead == {"cpu": "250m"}
        assert pod.spec.nodeSelector == {"gpu": "h100", "sandbox": "yes"}
        assert "sandbox" in {toleration.key for toleration in pod.spec.tolerations}
        seen = look(wanted, section, tuple(documents.items()), lambda words: None)
        assert seen.nodes is not None
        (node,) = seen.nodes
        assert "0.3 cpu of 0.35, of which RuntimeClass nvidia takes 0.25" in node.obstacle, "the pod alone would fit"
    finally:
        cluster.admin.delete(RuntimeClass, "nvidia")
