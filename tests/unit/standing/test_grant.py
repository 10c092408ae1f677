"""What an admin is given to apply, and the pods that it is for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import yaml
from lightkube.core.exceptions import ApiError
from typer.testing import CliRunner

from infra.cli.end import sweep
from infra.cli.hand import by_hand
from infra.cli.look import cp, inside
from infra.cli.look import exec as exec_module
from infra.cli.main import app
from infra.cli.run import repair
from infra.cluster.gang import GangJob, SecretKey, jobset
from infra.cluster.standing import placing
from infra.errors import UserError
from infra.spec.standing import StandingCluster
from infra.stack.cluster.workloads import node_rules, steward_rules
from infra.standing import health, look
from infra.standing.grant import Subject, grant_text
from infra.standing.openings import health_gang, openings
from infra.standing.rights import driver_rights, steward_rights
from tests.unit.standing.conftest import SPEC, Standing, bent
from tests.unit.standing.test_standing_spec import WORKLOAD

CLUSTER: dict[str, Any] = yaml.safe_load(SPEC.read_text())["cluster"]


def cluster(**changes: Any) -> StandingCluster:
    return StandingCluster.model_validate(bent(CLUSTER, changes))


def granted(standing: Standing, subject: Subject | None = None, /, **changes: Any) -> list[dict[str, Any]]:
    file = standing(changes)
    assert file.spec.cluster is not None
    return list(yaml.safe_load_all(grant_text(file.spec, file.spec.cluster, subject or Subject())))


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


@pytest.mark.parametrize("by_mpirun", [False, True])
def test_the_steward_has_the_rights_that_it_has_on_eks_but_changes_no_node(by_mpirun: bool) -> None:
    eks = {
        (rule["api_groups"][0], resource): set(rule["verbs"])
        for rule in map(_plain, steward_rules(by_mpirun))
        for resource in rule["resources"]
    }
    nodes = {verb for rule in map(_plain, node_rules()) for verb in rule["verbs"]} - {"patch"}
    table = {
        (right.group, resource): set(right.verbs) for right in steward_rights(by_mpirun) for resource in right.resources
    }
    assert table == eks | {("", "nodes"): nodes}


def _plain(rule: Any) -> dict[str, Any]:
    return {"api_groups": rule.api_groups, "resources": rule.resources, "verbs": rule.verbs}


def test_each_object_has_a_reason_and_only_three_kinds_lie_outside_the_namespace(standing: Standing) -> None:
    file = standing()
    assert file.spec.cluster is not None
    text = grant_text(file.spec, file.spec.cluster, Subject())
    documents = list(yaml.safe_load_all(text))
    assert all(part.startswith("\n# ") for part in text.split("\n---")[1:])
    outside = {document["kind"] for document in documents if document["metadata"].get("namespace") != "team-a"}
    assert outside == {"Namespace", "ClusterRole", "ClusterRoleBinding", "PersistentVolume"}
    for role in of_kind(documents, "ClusterRole"):
        assert [rule["resources"] for rule in role["rules"]] == [["nodes"]]


def test_the_quota_is_the_specs_nodes(standing: Standing) -> None:
    (quota,) = of_kind(granted(standing), "ResourceQuota")
    assert quota["spec"]["hard"] == {"requests.nvidia.com/gpu": "32", "requests.rdma/hca": "32", "pods": "18"}


def test_a_group_of_people_drives_in_the_place_of_an_account(standing: Standing) -> None:
    documents = granted(standing, Subject("Group", "ml-team"))
    assert "driver" not in [one["metadata"]["name"] for one in of_kind(documents, "ServiceAccount")]
    subjects = [
        binding["subjects"][0]
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for binding in of_kind(documents, kind)
        if binding["roleRef"]["name"].endswith("driver")
    ]
    assert subjects == 2 * [{"kind": "Group", "name": "ml-team", "apiGroup": "rbac.authorization.k8s.io"}]


def test_a_storage_class_is_looked_up_and_claimed_from(standing: Standing) -> None:
    changes: Any = {"cluster.shared": {"storage_class": "lustre", "capacity_gib": 1000, "write_mb_s": 1000}}
    documents = granted(standing, **changes)
    rules = {
        one["metadata"]["name"]: one["rules"] for kind in ("Role", "ClusterRole") for one in of_kind(documents, kind)
    }
    assert {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "resourceNames": ["lustre"],
            "verbs": ["get"]} in rules["bivouac-team-a-driver"]  # fmt: skip
    (claims,) = [rule for rule in rules["driver"] if rule["resources"] == ["persistentvolumeclaims"]]
    assert "create" in claims["verbs"]
    spec = standing(changes).spec
    assert spec.cluster is not None
    claim = dict(openings(spec, spec.cluster))["the shared claim"]
    assert claim["metadata"]["name"] == "bivouac-on-racks" and claim["spec"]["storageClassName"] == "lustre"


def test_the_command_prints_the_grant_and_refuses_a_spec_without_a_cluster(campaigns: Path) -> None:
    shown = CliRunner().invoke(app, ["grant", str(SPEC), "--user", "ada@example.org"])
    assert shown.exit_code == 0 and "kind: ClusterRole\n" in shown.stdout and "name: ada@example.org" in shown.stdout
    refused = CliRunner().invoke(app, ["grant", str(campaigns / "rehearsal.yaml")])
    assert "names no existing cluster" in str(refused.exception)


@pytest.mark.parametrize("command", ["bake", "offers", "preview"])
def test_a_command_that_does_not_work_there_says_so(command: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, [command, str(SPEC)], env={"BIVOUAC_RESULTS": str(tmp_path)})
    assert "does not work in an existing cluster" in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["repair", "on-racks"], "get events"),
        (["sweep", "on-racks"], "bivouac down on-racks"),
        (["shell", "on-racks"], "get pods -l bivouac.dev/campaign=on-racks"),
        (["exec", "on-racks", "0", "--", "true"], "exec -it POD -c trainer"),
        (["cp", "on-racks", "0:/tmp/x", "x"], "cp -c trainer POD:PATH PATH"),
    ],
)
def test_a_command_without_a_way_names_the_line_of_kubectl_that_does_it(
    words: list[str], instead: str, standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = standing().spec
    for module in (repair, sweep, by_hand, inside, exec_module, cp):
        for name, answer in (("record_of", None), ("stored_spec", spec)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *_, answer=answer: answer)
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, UserError) and "does not work in an existing cluster: " in error.what
    assert instead in str(error.cure) and "kubectl --context racks -n team-a" in str(error.cure)
    assert error.seen == "on-racks in context racks"


def gang_pod(section: StandingCluster, **fields: Any) -> dict[str, Any]:
    job = GangJob(
        name="on-racks-a1", campaign="on-racks", attempt=1, image="i@sha256:0", code_digest="c", nodes=4,
        ranks_per_node=8, accelerators=8, command=("true",), config_map="c", grace_seconds=1,
        **({"efa_interfaces": 32} | fields),
    )  # fmt: skip
    document = placing.gang(job, section)
    assert document["metadata"]["namespace"] == section.namespace
    pod: dict[str, Any] = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return pod


def test_a_pod_of_the_gang_takes_the_clusters_devices_and_nothing_of_eks() -> None:
    pod = gang_pod(cluster())
    resources = pod["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "8"}
    assert resources["requests"] == {"nvidia.com/gpu": "8", "rdma/hca": "8", "cpu": "100m"}
    assert "claims" not in gang_pod(cluster(), efa_by_claim=True)["containers"][0]["resources"]
    assert "resourceClaims" not in gang_pod(cluster(), efa_by_claim=True)
    assert pod["nodeSelector"] == {"gpu": "h100"} and "priorityClassName" not in pod
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]


def test_a_jobs_secret_reaches_only_the_container_that_hides_it_and_by_its_name_alone() -> None:
    key = SecretKey("HF_TOKEN", "hugging-face", "token")
    pod = gang_pod(cluster(), secrets=True, secret_keys=(key,), supervisor_image="s@sha256:0")
    named = [
        (container["name"], row["name"], row["valueFrom"]["secretKeyRef"])
        for container in (*pod["initContainers"], *pod["containers"])
        for row in container.get("env", ())
        if "secretKeyRef" in row.get("valueFrom", {})
    ]
    assert named == [("secrets", "BIVOUAC_SECRET_HF_TOKEN", {"name": "hugging-face", "key": "token"})]
    assert not [row for row in pod["volumes"] if "secret" in row]


def test_a_gang_has_the_networks_of_the_spec_beside_its_queues_topology(standing: Standing) -> None:
    networks = {"nodes.networks": ["rail-0", "fabric/rail-1"], "queue": "team", "topology": {"label": "leaf"}}
    job = health_gang(standing().spec)
    document = placing.gang(job, cluster(**networks))
    annotations = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["k8s.v1.cni.cncf.io/networks"] == "rail-0,fabric/rail-1"
    assert annotations["kueue.x-k8s.io/podset-required-topology"] == "leaf"
    assert "annotations" not in jobset(job)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]


def test_a_pod_has_the_clusters_own_classes_and_logins() -> None:
    fields = {"nodes.runtime_class": "nvidia", "priority_class": "research", "pull_secrets": ["registry"]}
    pod = gang_pod(cluster(**fields))
    assert (pod["runtimeClassName"], pod["priorityClassName"]) == ("nvidia", "research")
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_a_pod_claims_its_adapters_of_a_dra_driver_and_the_grant_has_what_it_claims(standing: Standing) -> None:
    fabric = {"device_class": "rdma", "adapters": 8}
    spec = standing({"cluster.fabric": fabric}).spec
    assert spec is not None and spec.cluster is not None
    pod = placing.gang(health_gang(spec), spec.cluster)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    (claim,), (container,) = pod["spec"]["resourceClaims"], pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": claim["name"]}]
    (template,) = of_kind(granted(standing, **{"cluster.fabric": fabric}), "ResourceClaimTemplate")
    assert template["metadata"] == {"name": claim["resourceClaimTemplateName"], "namespace": "team-a"}
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "rdma", "allocationMode": "ExactCount", "count": 8}
    (everything,) = of_kind(granted(standing, **{"cluster.fabric": {"device_class": "rdma"}}), "ResourceClaimTemplate")
    assert everything["spec"]["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] == "All"
    assert health.expectation_of(spec, spec.cluster, "https://minio.example.org").rdma, "claims are RDMA too"


def test_a_claim_of_the_admins_own_is_named_and_not_made(standing: Standing) -> None:
    changes = {"cluster.fabric": {"claim_template": "two-vfs"}}
    assert not of_kind(granted(standing, **changes), "ResourceClaimTemplate")
    pod = gang_pod(cluster(**{"fabric": {"claim_template": "two-vfs"}}))
    assert pod["resourceClaims"][0]["resourceClaimTemplateName"] == "two-vfs"
    names = [right.names for right in driver_rights(cluster(**{"fabric": {"claim_template": "two-vfs"}}))]
    assert ("two-vfs",) in names
    with pytest.raises(ValueError, match="give either"):
        cluster(**{"fabric": {"claim_template": "two-vfs", "device_class": "rdma"}})


@pytest.mark.parametrize("wish", ["host network", "pinned memory"])
def test_what_baseline_forbids_is_granted_with_its_price_and_a_policy_for_the_rest(
    wish: str, standing: Standing
) -> None:
    job = dict(WORKLOAD["workload"] or {}) | {"host_network": True}
    changes = {"cluster.fabric": {"ipc_lock": True}} if wish == "pinned memory" else WORKLOAD | {"workload": job}
    file = standing(changes)
    assert file.spec is not None and file.spec.cluster is not None
    text = grant_text(file.spec, file.spec.cluster, Subject())
    documents = list(yaml.safe_load_all(text))
    (space,) = of_kind(documents, "Namespace")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    price = {"host network": "own addresses", "pinned memory": "pin all of a node's memory"}[wish]
    assert "The price:" in text and price in text
    (policy,), (binding,) = (of_kind(documents, f"ValidatingAdmissionPolicy{end}") for end in ("", "Binding"))
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert documents[:3] == [policy, binding, space], "nothing is open before the policy stands"
    guards = [document for document in documents if "bivouac.dev/guard" in document["metadata"].get("labels", {})]
    assert guards == [policy, binding] and "-l bivouac.dev/guard && kubectl apply" in text
    (place,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"].values()
    assert place == "team-a"
    pod = placing.gang(health_gang(file.spec), file.spec.cluster)
    pod = pod["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    capabilities = pod["containers"][0]["securityContext"]["capabilities"]
    assert bool(pod.get("hostNetwork")) == (wish == "host network")
    assert capabilities.get("add", []) == (["IPC_LOCK"] if wish == "pinned memory" else [])
    assert not of_kind(granted(standing), "ValidatingAdmissionPolicy")


@pytest.mark.parametrize("holds", [True, False])
def test_a_policy_that_does_not_stand_is_heard_of_by_what_the_server_takes(holds: bool, standing: Standing) -> None:
    spec = standing({"cluster.fabric": {"ipc_lock": True}}).spec
    assert spec.cluster is not None
    pods: list[Any] = []

    def create(pod: Any) -> None:
        pods.append(pod)
        if holds:
            response = httpx2.Response(422, json={"message": "no host namespace", "code": 422})
            raise ApiError(response=response)

    server: Any = SimpleNamespace(create=create)
    answer = look._policy_gap(server, spec, spec.cluster, openings(spec, spec.cluster))
    assert answer == ("" if holds else "a pod of account trainer with hostPID")
    assert [(pod.spec.serviceAccountName, pod.spec.hostPID) for pod in pods] == [("trainer", True)]
    closed = standing().spec
    assert closed.cluster is not None
    assert look._policy_gap(server, closed, closed.cluster, ()) == "" and len(pods) == 1


def test_a_pod_writes_to_folders_of_its_campaign_on_a_claim_that_others_use_too() -> None:
    pod = gang_pod(cluster())
    claims = {volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
    assert (claims["shared"], claims["local"]) == ("scratch", "local")
    folders = {mount["subPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "shared"}
    assert folders == {"bivouac/team-a/on-racks/data", "bivouac/team-a/on-racks/checkpoints"}


def test_placing_leaves_the_gang_of_eks_as_it_is(standing: Standing) -> None:
    job = health_gang(standing().spec)
    before = jobset(job)
    placing.gang(job, cluster())
    assert jobset(job) == before and before["metadata"]["namespace"] == "campaign"


def test_the_steward_reaches_s3_by_the_secret_alone(standing: Standing) -> None:
    spec = standing({"cluster.system_labels": {"pool": "cpu"}}).spec
    assert spec.cluster is not None
    documents = dict(openings(spec, spec.cluster))
    pod = documents["the steward"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-login"}}] and pod["nodeSelector"] == {"pool": "cpu"}
    values = {row["name"]: row["value"] for row in container["env"]}
    assert values["AWS_ENDPOINT_URL_S3"] == "https://minio.example.org" and values["AWS_REGION"] == "us-east-1"
