"""The gang of a job that `mpirun` starts: the operator's MPIJob, and what its pods know of each other."""

from __future__ import annotations

import re
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod

from infra.cluster import attempts
from infra.cluster.admission import policies
from infra.cluster.gang import index_of
from infra.cluster.kubernetes import JobSet, MPIJob
from infra.spec.campaign import Spec, load
from tests.pods import IMAGE, gang, mpi_gang
from tests.root import ROOT

THEIRS = "nvcr.io/nvidia/pytorch@sha256:" + "1" * 64


def replicas(**changes: Any) -> dict[str, dict[str, Any]]:
    specs: dict[str, dict[str, Any]] = mpi_gang(**changes)["spec"]["mpiReplicaSpecs"]
    return specs


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in pod["env"]}


def test_one_pod_a_node_none_restarts_and_the_launcher_is_node_0() -> None:
    job = mpi_gang(nodes=4)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert {kind: one["replicas"] for kind, one in replicas(nodes=4).items()} == {"Launcher": 1, "Worker": 3}
    assert {kind: one["replicas"] for kind, one in replicas(nodes=1).items()} == {"Launcher": 1}
    assert job["spec"]["runLauncherAsWorker"] is True and job["spec"]["slotsPerWorker"] == 8
    assert job["spec"]["runPolicy"] == {"cleanPodPolicy": "None", "backoffLimit": 0}
    assert {one["restartPolicy"] for one in replicas().values()} == {"Never"}
    for one in replicas().values():
        assert "restartPolicy" not in one["template"]["spec"], "the operator warns of it there"


def test_its_pods_are_those_of_the_other_gangs_but_for_where_they_find_each_other() -> None:
    (plain,) = gang(supervisor_image=IMAGE, image=THEIRS)["spec"]["replicatedJobs"]
    other = plain["template"]["spec"]["template"]
    for one in replicas(supervisor_image=IMAGE, image=THEIRS).values():
        template = one["template"]
        assert template["metadata"]["labels"] == other["metadata"]["labels"]
        differs = {
            key for key in {**template["spec"], **other["spec"]} if template["spec"].get(key) != other["spec"].get(key)
        }
        assert differs == {"affinity", "restartPolicy", "containers"}
        assert template["spec"]["priorityClassName"] == "bivouac-training"
        gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        assert gpu in template["spec"]["tolerations"]
        (ours,), (theirs,) = template["spec"]["containers"], other["spec"]["containers"]
        assert {**ours, "env": None} == {**theirs, "env": None}
        told, before = environment(ours), environment(theirs)
        assert {name for name in told if told[name] != before[name]} == {"BIVOUAC_RENDEZVOUS", "BIVOUAC_NODE_RANK"}
        assert told["BIVOUAC_RENDEZVOUS"] == "example-1-launcher.example-1:29500"
        assert told["BIVOUAC_NODE_RANK"] == "metadata.labels['training.kubeflow.org/replica-index']"


def test_no_two_pods_of_an_attempt_share_a_node_and_all_are_in_one_zone() -> None:
    mine = {"bivouac.dev/campaign": "example", "bivouac.dev/attempt": "1"}
    for one in replicas().values():
        rules = one["template"]["spec"]["affinity"]
        for kind, key in (
            ("podAntiAffinity", "kubernetes.io/hostname"),
            ("podAffinity", "topology.kubernetes.io/zone"),
        ):
            (rule,) = rules[kind]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert rule["topologyKey"] == key and rule["labelSelector"]["matchLabels"] == mine


def pod(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Pod:
    metadata = {"name": "p", "labels": labels, "annotations": annotations}
    return from_dict({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})  # type: ignore[return-value]


def test_a_pods_index_is_that_of_its_job_or_of_its_mpi_job() -> None:
    assert index_of(pod(annotations={"batch.kubernetes.io/job-completion-index": "3"})) == 3
    assert index_of(pod({"training.kubeflow.org/replica-index": "2"})) == 2
    launcher = pod({"training.kubeflow.org/replica-index": "0"}, {})
    assert index_of(launcher) == index_of(pod()) == 0


def spec(name: str) -> Spec:
    return load(ROOT / f"trainer/examples/{name}/rehearsal.yaml").spec


def test_the_kind_of_a_campaigns_attempts_is_that_of_its_launcher() -> None:
    assert attempts.kind_of(spec("mpi")) is MPIJob and attempts.kind_of(spec("ddp")) is JobSet
    assert attempts.kind_of(load(ROOT / "infra/campaigns/rehearsal.yaml").spec) is JobSet


# --- what the cluster admits ---

SECRETS = re.compile(r"v\.secret\.secretName\.matches\('([^']*)'\)")


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("mpi-a1-ssh", True), ("mpi-a12-ssh", True), ("mpi-a1", False), ("other-mpi-a1-ssh", False),
        ("mpi-a1-ssh-2", False), ("mpi-ax-ssh", False), ("mpia1-ssh", False),
    ],
)  # fmt: skip
def test_only_the_operators_keys_of_this_campaign_may_be_mounted(name: str, taken: bool) -> None:
    for policy in policies("bivouac-mpi", "r/bivouac/trainer", mpi="mpi").values():
        (rule,) = [
            validation["expression"]
            for validation in policy["spec"]["validations"]
            if "v.secret" in validation["expression"]
        ]
        (pattern,) = SECRETS.findall(rule)
        assert bool(re.search(pattern, name)) is taken
        assert "s.?serviceAccountName.orValue('') == 'trainer' && has(v.secret)" in rule


def test_where_no_attempt_is_an_mpi_job_no_pod_of_ours_mounts_a_secret() -> None:
    for policy in policies("bivouac-mpi", "r/bivouac/trainer").values():
        assert not any("v.secret" in validation["expression"] for validation in policy["spec"]["validations"])
        rules = policy["spec"]["matchConstraints"]["resourceRules"]
        assert not [rule for rule in rules if "mpijobs" in rule["resources"]]


def test_the_stewards_mpi_jobs_are_judged_by_the_pods_of_launcher_and_workers() -> None:
    steward = policies("bivouac-mpi", "r/bivouac/trainer", mpi="mpi")["steward"]["spec"]
    rules = [rule for rule in steward["matchConstraints"]["resourceRules"] if "mpijobs" in rule["resources"]]
    assert [(one["apiGroups"], one["operations"]) for one in rules] == [(["kubeflow.org"], ["CREATE", "UPDATE"])]
    specs = next(variable["expression"] for variable in steward["variables"] if variable["name"] == "specs")
    assert "object.spec.mpiReplicaSpecs[kind].template.spec" in specs
