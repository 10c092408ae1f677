"""What `bivouac grant` prints, applied to a real API server: whom it lets do what, and what a campaign hears there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.models.authorization_v1 import SelfSubjectRulesReviewSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.authorization_v1 import SelfSubjectRulesReview
from lightkube.resources.core_v1 import ConfigMap, Namespace, Node, Pod, Secret, ServiceAccount
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim
from typer.testing import CliRunner

from infra.cli.main import app
from infra.cluster import attempts
from infra.cluster.kubernetes import JobSet
from infra.cluster.standing.connection import connect
from infra.plan.standing_facts import SeenCluster
from infra.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneConfig
from infra.spec.campaign import Spec
from infra.standing.grant import Subject, grant_text
from infra.standing.look import look
from infra.standing.openings import openings
from infra.standing.rights import DRIVER_ACCOUNT, rights
from tests.root import ROOT
from tests.waiting import until as eventually
from tests.worlds.control_plane import client, config, plane, release_secret, state_of

__all__ = ["client", "config", "plane"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]
SPEC_FILE = "tests/unit/standing/standing.yaml"
SPEC: dict[str, Any] = yaml.safe_load((ROOT / SPEC_FILE).read_text())
SPACE, OTHERS, STRANGER = "team-a", "team-b", "stranger"
Grants = set[tuple[str, str, str, str]]
"""(verb, group, resource, name or *)."""


@dataclass
class Cluster:
    """The cluster of somebody's, with what its admin does."""

    config: ControlPlaneConfig
    admin: Client
    folder: Path
    without_jobset: SeenCluster | None = None

    def kubectl(self, *words: str, text: str = "") -> str:
        argv = [str(self.config.tools / "kubectl"), f"--kubeconfig={self.config.kubeconfig('admin')}", *words]
        answer = subprocess.run(
            [*argv, f"--cache-dir={self.folder / 'cache'}"], input=text, capture_output=True, text=True
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def tenant(self, monkeypatch: pytest.MonkeyPatch, account: str = DRIVER_ACCOUNT, space: str = SPACE) -> Client:
        """A client by a kubeconfig of this account, which KUBECONFIG names from then on."""
        document = yaml.safe_load(self.config.kubeconfig("admin").read_text())
        document["users"] = [{"name": "user", "user": {"token": self.kubectl("-n", space, "create", "token", account)}}]
        document["contexts"][0]["name"] = "racks"
        path = self.folder / f"{space}-{account}.yaml"
        path.write_text(yaml.safe_dump(document))
        monkeypatch.setenv("KUBECONFIG", str(path))
        section = spec().cluster
        assert section is not None
        return connect(section)


def spec(**changes: Any) -> Spec:
    return Spec.model_validate(SPEC | changes)


def asked(tenant: Client) -> SeenCluster:
    """The answers to this login, which KUBECONFIG names."""
    section = spec().cluster
    assert section is not None and tenant.namespace == SPACE
    return look(spec(), section, openings(spec(), section), lambda words: None)


@pytest.fixture(scope="session")
def cluster(
    plane: ControlPlane, config: ControlPlaneConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster with another tenant, whose admin has applied the grant, twice."""
    admin = plane.client()
    cluster = Cluster(config, admin, tmp_path_factory.mktemp("standing"))
    section = spec().cluster
    assert section is not None
    admin.create(Namespace(metadata=ObjectMeta(name=OTHERS)))
    admin.create(ServiceAccount(metadata=ObjectMeta(name=STRANGER, namespace=OTHERS)))
    for _ in range(2):
        cluster.kubectl("apply", "-f", "-", text=grant_text(spec(), section, Subject()))
    login = cluster.folder / "login.env"
    login.write_text("AWS_ACCESS_KEY_ID=a\n")
    for name, space in (("s3-login", SPACE), ("payroll", SPACE), ("s3-login", OTHERS)):
        cluster.kubectl("-n", space, "create", "secret", "generic", name, "--from-env-file", str(login))
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "scratch", "namespace": SPACE},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "lustre",
                 "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    admin.create(from_dict(claim))
    admin.create(Node(metadata=ObjectMeta(name="rack-1", labels={"gpu": "h100"})))
    with pytest.MonkeyPatch.context() as patch:
        cluster.without_jobset = asked(cluster.tenant(patch))
    yield cluster


def allowed(tenant: Client, space: str) -> Grants:
    """What the API server's authorizer lists for this login in a namespace."""
    review = tenant.create(SelfSubjectRulesReview(spec=SelfSubjectRulesReviewSpec(namespace=space)))
    assert review.status is not None and not review.status.incomplete
    return {
        (verb, group, resource, name)
        for rule in review.status.resourceRules
        for verb in rule.verbs
        for group in rule.apiGroups or []
        for resource in rule.resources or []
        for name in rule.resourceNames or ["*"]
    }


@pytest.mark.parametrize("account", ["driver", "steward"])
def test_an_account_may_what_the_table_says_and_no_more(
    account: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = spec().cluster
    assert section is not None
    anybody = allowed(cluster.tenant(monkeypatch, STRANGER, OTHERS), OTHERS)
    table = {
        (verb, right.group, resource, name)
        for right in rights(spec(), section)
        if right.account == account
        for verb in right.verbs
        for resource in right.resources
        for name in right.names or ["*"]
    }
    tenant = cluster.tenant(monkeypatch, account)
    assert allowed(tenant, SPACE) - anybody == table
    elsewhere = allowed(tenant, OTHERS) - anybody
    assert {resource for _, _, resource, _ in elsewhere} == {"nodes"}
    assert {verb for verb, *_ in elsewhere} <= {"get", "list", "watch"}


@pytest.mark.parametrize("account", ["trainer", "archive"])
def test_the_pods_of_a_job_may_nothing(account: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    anybody = allowed(cluster.tenant(monkeypatch, STRANGER, OTHERS), OTHERS)
    assert allowed(cluster.tenant(monkeypatch, account), SPACE) <= anybody


def code(call: Callable[[], Any]) -> int | None:
    try:
        call()
    except ApiError as error:
        return error.status.code
    return None


def test_the_driver_makes_and_removes_a_campaigns_objects(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very objects of `openings`, and the calls of `infra.cluster.attempts`."""
    install_jobset(cluster)
    tenant, section = cluster.tenant(monkeypatch), spec().cluster
    assert section is not None
    attempts.create_config(tenant, "on-racks-1", {}, {"a": "1"})
    attempts.create_config(tenant, "on-racks-1", {}, {"a": "2"})
    assert tenant.get(ConfigMap, "on-racks-1").data == {"a": "2"}
    documents = dict(openings(spec(), section))
    gang: Any = tenant.create(from_dict(documents["the gang of the health check"]))
    tenant.apply(from_dict(documents["the steward"]), force=True)
    deployments: list[Any] = list(tenant.list(Deployment))
    assert [deployment.metadata.name for deployment in deployments] == ["steward"]
    pods = eventually(lambda: list(tenant.list(Pod, labels={"bivouac.dev/campaign": "on-racks"})))
    assert pods[0].spec.nodeSelector in ({"gpu": "h100"}, None)
    attempts.remove(tenant, JobSet, gang.metadata.name)
    tenant.delete(Deployment, "steward")
    tenant.delete(ConfigMap, "on-racks-1")
    eventually(lambda: not list(tenant.list(Pod)))


def test_the_driver_reaches_nothing_of_others(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = cluster.tenant(monkeypatch)
    assert tenant.get(Secret, "s3-login").data
    node = {"spec": {"unschedulable": True}}
    for call in (
        lambda: tenant.get(Secret, "payroll"),
        lambda: list(tenant.list(Secret)),
        lambda: tenant.get(Secret, "s3-login", namespace=OTHERS),
        lambda: list(tenant.list(Pod, namespace=OTHERS)),
        lambda: tenant.patch(Node, "rack-1", node),
        lambda: tenant.delete(Node, "rack-1"),
        lambda: tenant.create(Namespace(metadata=ObjectMeta(name="team-c"))),
        lambda: tenant.delete(Namespace, SPACE),
        lambda: cluster.tenant(monkeypatch, "steward").patch(Node, "rack-1", node),
    ):
        assert code(call) == 403


def test_a_pod_of_the_tenant_names_no_path_of_a_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = cluster.tenant(monkeypatch)
    container = {"name": "one", "image": "one", "volumeMounts": [{"name": "root", "mountPath": "/root"}]}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": SPACE},
        "spec": {"containers": [container], "volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
    }  # fmt: skip
    with pytest.raises(ApiError, match="hostPath"):
        tenant.create(from_dict(pod))


JOB = {
    "command": ["./train"], "launcher": "none", "host_network": True,
    "estimates": {"steps": 100, "step_seconds": 1, "checkpoint_gib": 1},
}  # fmt: skip
OPEN = "team-fabric"
"""A namespace whose job is in its nodes' network, pins memory, and claims adapters of a DRA driver."""


@pytest.fixture
def fabric_spec(cluster: Cluster) -> Spec:
    """The spec of such a namespace, whose grant the admin has applied."""
    fabric = {"ipc_lock": True, "device_class": "rdma", "adapters": 2}
    section = SPEC["cluster"] | {"namespace": OPEN, "fabric": fabric}
    content = {name: value for name, value in SPEC.items() if name not in ("training", "data")}
    wanted = Spec.model_validate(content | {"cluster": section, "workload": JOB})
    assert wanted.cluster is not None
    cluster.kubectl("apply", "-f", "-", text=grant_text(wanted, wanted.cluster, Subject()))
    return wanted


def test_the_job_alone_has_its_nodes_network_and_pinned_memory_and_nobody_more(
    cluster: Cluster, fabric_spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace is `privileged`: the policy of the grant holds what Pod Security held before."""
    section = fabric_spec.cluster
    assert section is not None
    cluster.tenant(monkeypatch, space=OPEN)
    tenant = connect(section, dry_run=True)
    documents = dict(openings(fabric_spec, section))
    own_pod = documents["a pod of the gang"]
    assert own_pod["spec"]["hostNetwork"] and own_pod["spec"]["resourceClaims"]
    assert own_pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]

    def answer(spec: dict[str, Any]) -> str:
        pod = own_pod | {"spec": spec}
        try:
            tenant.create(from_dict(pod))
        except ApiError as error:
            return str(error.status.message)
        return ""

    # A policy comes into force a moment after it is applied.
    eventually(lambda: "no folder of the node" in answer(own_pod["spec"] | {
        "volumes": [*own_pod["spec"]["volumes"], {"name": "root", "hostPath": {"path": "/"}}]
    }))  # fmt: skip
    assert answer(own_pod["spec"]) == ""
    others_pod = own_pod["spec"] | {"serviceAccountName": "default"}
    assert "no host namespace" in answer(others_pod)
    assert "IPC_LOCK for the job alone" in answer(others_pod | {"hostNetwork": False, "dnsPolicy": "Default"})
    container = own_pod["spec"]["containers"][0]
    for security, refusal in (
        ({"privileged": True}, "no privileged container"),
        ({"capabilities": {"add": ["SYS_ADMIN"]}}, "capabilities: add none but"),
    ):
        assert refusal in answer(own_pod["spec"] | {"containers": [container | {"securityContext": security}]})
    assert "no host namespace" in answer(own_pod["spec"] | {"hostPID": True})
    assert list(tenant.list(Pod)) == []


def test_the_adapters_that_pods_claim_are_looked_up_and_claimed(
    cluster: Cluster, fabric_spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes itself makes each pod's claim of the grant's template; no DRA driver is there to fill it."""
    install_jobset(cluster)
    cluster.tenant(monkeypatch, space=OPEN)
    section = fabric_spec.cluster
    assert section is not None
    tenant = connect(section)
    documents = dict(openings(fabric_spec, section))

    def found() -> SeenCluster:
        return look(fabric_spec, section, list(documents.items()), lambda words: None)

    before = found()
    assert before.missing_rights == () and 'deviceclasses.resource.k8s.io "rdma" not found' in before.claim
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "rdma"}}
    cel = {"expression": 'device.driver == "dra.net" && device.attributes["dra.net"].rdma'}
    cluster.admin.create(from_dict(kind | {"spec": {"selectors": [{"cel": cel}]}}))
    try:
        assert found().claim == ""
        tenant.create(from_dict(documents["a pod of the gang"]))
        claims: list[Any] = eventually(lambda: list(cluster.admin.list(ResourceClaim, namespace=OPEN)))
        assert [row.spec.devices.requests[0].exactly.count for row in claims] == [2]
        (owner,) = claims[0].metadata.ownerReferences
        assert owner.kind == "Pod"
        tenant.delete(Pod, owner.name, grace_period=0)
        eventually(lambda: not list(cluster.admin.list(ResourceClaim, namespace=OPEN)))
    finally:
        cluster.admin.delete(DeviceClass, "rdma")


def install_jobset(cluster: Cluster) -> None:
    if code(lambda: cluster.admin.create(release_secret("jobset", "jobset"))) is None:
        eventually(lambda: state_of(cluster.admin, "jobset"))


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
    assert len(seen.dry_runs) == 5 and {dry_run.refusal for dry_run in seen.dry_runs} == {""}
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
    refusals = {dry_run.what: dry_run.refusal for dry_run in cluster.without_jobset.dry_runs if dry_run.refusal}
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
        refusals = {dry_run.what: dry_run.refusal for dry_run in asked(tenant).dry_runs}
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
        assert {(name.kind, name.name, name.campaign) for name in seen.held_names} == {
            ("ConfigMap", "steward", "elsewhere"), ("ConfigMap", "archive", "")
        }  # fmt: skip
        contents = [tenant.get(ConfigMap, name).data for name in ("steward", "archive", "preflight")]
        assert contents == [{"a": "1"}] * 3
    finally:
        for name in ("steward", "archive", "preflight"):
            cluster.admin.delete(ConfigMap, name, namespace=SPACE)
