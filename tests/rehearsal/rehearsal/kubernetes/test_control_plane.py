"""A real control plane on a bridge: what it serves, what its controllers do, and its end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.core_v1 import Container, NodeSpec, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Node, Pod, Secret, ServiceAccount

from infra.cluster.gang import GangJob
from infra.cluster.gang import jobset as gang_jobset
from infra.errors import PermanentError
from infra.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneConfig
from infra.spec.names import STEWARD_PRIORITY_CLASS
from tests.waiting import until as eventually
from tests.worlds.control_plane import ask, release_secret, state_of

pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]
JobSet = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")


def jobset(name: str) -> Any:
    container = {"name": "trainer", "image": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": pod}
    spec = {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}]}
    return JobSet(metadata=ObjectMeta(name=name, namespace="campaign"), spec=spec)


def names(objects: Iterable[Any]) -> list[str]:
    return [one.metadata.name for one in objects]


def status_of(one: Any) -> Any:
    return one.status


def release_states(plane: ControlPlane) -> dict[str, str]:
    """By `namespace/release`."""
    return {"/".join(key): state for key, (_, state) in list(plane._releases._states.items())}


def test_kubectl_works_with_the_admin_kubeconfig(plane: ControlPlane, config: ControlPlaneConfig) -> None:
    argv = [str(config.tools / "kubectl"), f"--kubeconfig={plane.admin_kubeconfig}", f"--cache-dir={config.work}"]
    answer = subprocess.run([*argv, "get", "ns"], capture_output=True, text=True)
    assert "kube-system" in answer.stdout, answer.stderr
    assert plane.alive()


def test_an_access_entry_of_the_owner_may_do_everything_and_a_stranger_nothing(plane: ControlPlane) -> None:
    assert ask(plane, "owner", "/api/v1/secrets") == 200
    assert ask(plane, "stranger", "/api/v1/namespaces") == 401


def test_a_node_reads_what_its_agents_need_and_not_the_secrets_of_others(plane: ControlPlane) -> None:
    assert ask(plane, "node", "/apis/discovery.k8s.io/v1/endpointslices") == 200
    assert ask(plane, "node", "/api/v1/services") == 200
    assert ask(plane, "node", "/api/v1/namespaces/kube-system/secrets?labelSelector=owner%3Dhelm") == 200
    assert ask(plane, "node", "/api/v1/namespaces/default/secrets") == 403


def test_a_terminated_instance_loses_its_node_and_only_that(plane: ControlPlane, client: Client) -> None:
    for name, instance in (("node-a", "i-0a"), ("node-b", "i-0b")):
        spec = NodeSpec(providerID=f"aws:///us-east-1a/{instance}")
        client.create(Node(metadata=ObjectMeta(name=name), spec=spec))
    plane.delete_node("aws:///us-east-1a/i-0a")
    plane.delete_node("aws:///us-east-1a/i-never-was")
    assert names(client.list(Node)) == ["node-b"]


def test_without_the_release_a_jobset_is_an_unknown_kind(client: Client) -> None:
    client.create(Namespace(metadata=ObjectMeta(name="campaign")))
    with pytest.raises(Exception, match="404"):
        client.create(jobset("too-early"))


def test_the_steward_has_the_priority_of_an_add_on_outside_of_the_systems_namespace(client: Client) -> None:
    eventually(lambda: list(client.list(ServiceAccount, namespace="default")))
    spec = PodSpec(containers=[Container(name="steward", image="i")], priorityClassName=STEWARD_PRIORITY_CLASS)
    made = client.create(Pod(metadata=ObjectMeta(name="steward", namespace="default"), spec=spec))
    assert made.spec and made.spec.priority == 2_000_000_000
    client.delete(Pod, "steward", namespace="default", grace_period=0)


def a_failed_pod_of_a_health_check_ends_no_other(client: Client) -> None:
    """Each node's report is wanted, also of those that answer after an unfit one, or start after it."""
    gang = GangJob(
        name="check", campaign="c", attempt=0, image="i@sha256:0", code_digest="d", nodes=2, ranks_per_node=1,
        accelerators=1, efa_interfaces=0, command=("true",), config_map="c", grace_seconds=5, each_to_its_end=True,
    )  # fmt: skip
    manifest = gang_jobset(gang)
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    del pod["serviceAccountName"], pod["priorityClassName"]
    client.create(JobSet.from_dict(manifest))

    def pods() -> dict[str, Any]:
        found = list(client.list(Pod, namespace="campaign", labels={"bivouac.dev/campaign": "c"}))
        return dict(zip(names(found), found, strict=True))

    first, second = eventually(lambda: sorted(pods()) if len(pods()) == 2 else None)
    client.patch(Pod.Status, first, {"status": {"phase": "Failed"}}, namespace="campaign")
    eventually(lambda: status_of(client.get(Job, "check-gang-0", namespace="campaign")).failedIndexes == "0")
    assert pods()[second].metadata.deletionTimestamp is None and pods()[second].status.phase == "Pending"
    client.delete(JobSet, "check", namespace="campaign")
    eventually(lambda: names(client.list(Job, namespace="campaign")) == ["first-workers-0"])


def test_a_jobset_release_makes_jobs_and_pods_and_its_end_stops_the_controller(
    plane: ControlPlane, client: Client
) -> None:
    client.create(release_secret("jobset", "jobset"))
    eventually(lambda: state_of(client, "jobset"))
    client.create(jobset("first"))
    eventually(lambda: names(client.list(Job, namespace="campaign")) == ["first-workers-0"])
    pods = eventually(lambda: list(client.list(Pod, namespace="campaign")))
    assert {pod.status.phase for pod in pods} == {"Pending"}
    assert all(pod.spec.hostname for pod in pods), "the pod webhook and the Job's index name the pods"
    wrong = jobset("wrong")
    wrong.spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["nobody"]}
    with pytest.raises(ApiError, match=r"vjobset\.kb\.io.*denied the request"):
        client.create(wrong)
    a_failed_pod_of_a_health_check_ends_no_other(client)
    client.delete(Secret, "sh.helm.release.v1.jobset.v1", namespace="kube-system")
    eventually(lambda: "kube-system/jobset" not in release_states(plane))
    eventually(lambda: not plane._jobset.alive())
    client.create(jobset("nobody-looks-after-it"))
    assert names(client.list(Job, namespace="campaign")) == ["first-workers-0"]


def test_a_jobset_controller_that_dies_is_started_again(plane: ControlPlane, client: Client) -> None:
    client.create(release_secret("again", "jobset"))
    eventually(lambda: state_of(client, "again"))
    plane._jobset.kill()
    eventually(plane._jobset.alive)


def test_a_chart_that_nothing_stands_behind_is_recorded(plane: ControlPlane, client: Client) -> None:
    client.create(release_secret("nvidia-device-plugin", "nvidia-device-plugin"))
    eventually(lambda: state_of(client, "nvidia-device-plugin") == "recorded")
    assert release_states(plane)["kube-system/nvidia-device-plugin"] == "recorded"


def test_a_taken_address_is_refused_with_a_cure(plane: ControlPlane, config: ControlPlaneConfig) -> None:
    with pytest.raises(PermanentError, match="cure"):
        ControlPlane.start(config)


def test_stop_leaves_no_process_and_frees_the_address(plane: ControlPlane, config: ControlPlaneConfig) -> None:
    plane.stop()
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(config.tools).encode() in command for command in running)
    assert not plane.alive()


def test_a_cluster_can_be_made_again_at_the_same_address_and_is_empty(config: ControlPlaneConfig) -> None:
    again = ControlPlane.start(config)
    try:
        assert "campaign" not in names(again.client().list(Namespace))
    finally:
        again.stop()
