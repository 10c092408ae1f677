"""A namespace that its grant opens beyond `baseline`, at a real API server: in which order, for whom, and for what."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.admissionregistration_v1 import ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim

from infra.cluster.standing.connection import connect
from infra.plan.standing_facts import SeenCluster
from infra.spec.campaign import Spec
from infra.standing.grant import Subject, grant_text
from infra.standing.look import look
from infra.standing.openings import openings
from tests.waiting import until as eventually
from tests.worlds.control_plane import config, plane
from tests.worlds.standing.cluster import Cluster, cluster, code, install_jobset, opened_spec

__all__ = ["cluster", "config", "plane"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]
OPEN = "team-fabric"


@pytest.fixture
def fabric_spec(cluster: Cluster) -> Spec:
    """The spec of an opened namespace, whose grant the admin has applied."""
    wanted = opened_spec(OPEN)
    assert wanted.cluster is not None
    cluster.kubectl("apply", "-f", "-", text=grant_text(wanted, wanted.cluster, Subject()))
    return wanted


def printed_steps(wanted: Spec, folder: Path) -> str:
    """The two steps that the grant's own head prints, beside the file that they read."""
    assert wanted.cluster is not None
    text = grant_text(wanted, wanted.cluster, Subject())
    (folder / "grant.yaml").write_text(text)
    (steps,) = (line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#   kubectl"))
    return steps


def shell(cluster: Cluster, login: str | Path, folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A line as an admin types it, with the kubeconfig `login`."""
    path = f"{cluster.config.tools}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder), "KUBECONFIG": str(login)}
    return subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_printed_steps_open_the_namespace_only_behind_its_policy(cluster: Cluster, tmp_path: Path) -> None:
    wanted, login = opened_spec("team-steps"), cluster.config.kubeconfig("admin")
    steps = printed_steps(wanted, tmp_path)
    first, _, second = steps.partition(" && ")
    assert second
    done = shell(cluster, login, tmp_path, first)
    assert done.returncode == 0, done.stderr
    for kind in (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding):
        cluster.admin.get(kind, "bivouac-team-steps-baseline")
    assert code(lambda: cluster.admin.get(Namespace, "team-steps")) == 404
    done = shell(cluster, login, tmp_path, steps)
    assert done.returncode == 0, done.stderr
    labels = cluster.admin.get(Namespace, "team-steps").metadata.labels  # type: ignore[union-attr]
    assert labels and labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert "unchanged" in shell(cluster, login, tmp_path, steps).stdout


def test_an_admin_who_may_make_no_policy_opens_no_namespace_by_the_printed_steps(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step kubectl goes on after what it may not make; then `check --online` says what is missing."""
    wanted = opened_spec("team-shut")
    assert wanted.cluster is not None
    rules = [
        {"apiGroups": ["", "rbac.authorization.k8s.io", "resource.k8s.io"], "resources": ["*"], "verbs": ["*"]},
    ]
    group = "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": "half-admin", "namespace": "kube-system"}
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "half-admin"}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "half-admin"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "half-admin"}, "subjects": [account],
    }  # fmt: skip
    metadata = {"name": "half-admin", "namespace": "kube-system"}
    own_account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump_all([own_account, role, binding]))
    cluster.tenant(monkeypatch, "half-admin", "kube-system")
    login = os.environ["KUBECONFIG"]
    steps = printed_steps(wanted, tmp_path)
    two_steps = shell(cluster, login, tmp_path, steps)
    assert two_steps.returncode != 0 and "validatingadmissionpolicies" in two_steps.stderr
    assert code(lambda: cluster.admin.get(Namespace, "team-shut")) == 404
    one_step = shell(cluster, login, tmp_path, steps.partition(" && ")[2])
    assert one_step.returncode != 0 and cluster.admin.get(Namespace, "team-shut").metadata
    login_text = "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\n"
    (tmp_path / "login.env").write_text(login_text)
    cluster.kubectl("-n", "team-shut", "create", "secret", "generic", "s3-login",
                    "--from-env-file", str(tmp_path / "login.env"))  # fmt: skip
    cluster.tenant(monkeypatch, space="team-shut")
    documents = openings(wanted, wanted.cluster)
    answers = look(wanted, wanted.cluster, documents, lambda words: None)
    assert answers.missing_rights == () and "hostPID" in answers.policy_gap


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
