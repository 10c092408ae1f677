"""Run by test_control_plane.py in private namespaces: a real control plane on a bridge, with a fake token webhook."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.core_v1 import Container, NodeSpec, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Node, Pod, Secret, ServiceAccount

from infra.campaign.launch import steward_pod
from infra.cluster.admission import binding, pod_security, policies
from infra.cluster.gang import GangJob
from infra.cluster.gang import jobset as gang_jobset
from infra.errors import PermanentError
from infra.folders import share_dir
from infra.rehearsal.kubernetes import kubectl
from infra.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneConfig
from infra.rehearsal.plugins.kubernetes.releases import STATE_ANNOTATION
from infra.spec.names import STEWARD_PRIORITY_CLASS
from tests.pods import IMAGE, archive, copy, fetch, gang, mpi_gang, preparing
from tests.rehearsal.rehearsal import admission, hosted_cases
from tests.rehearsal.rehearsal.plane_camp import ask, client, config, plane
from tests.waiting import until as eventually

__all__ = ["client", "config", "plane"]

RBAC = "rbac.authorization.k8s.io"
JobSet = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")


def release_secret(release: str, chart: str) -> Secret:
    document = {"name": release, "chart": {"metadata": {"name": chart, "version": "0.10.1"}}}
    data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(document).encode()))).decode()
    labels = {"owner": "helm", "name": release, "status": "deployed", "version": "1"}
    metadata = ObjectMeta(name=f"sh.helm.release.v1.{release}.v1", namespace="kube-system", labels=labels)
    return Secret(metadata=metadata, type="helm.sh/release.v1", data={"release": data})


def jobset(name: str) -> Any:
    container = {"name": "trainer", "image": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": pod}
    spec = {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}]}
    return JobSet(metadata=ObjectMeta(name=name, namespace="campaign"), spec=spec)


def state_of(client: Client, release: str) -> str | None:
    secret = client.get(Secret, f"sh.helm.release.v1.{release}.v1", namespace="kube-system")
    assert secret.metadata
    return (secret.metadata.annotations or {}).get(STATE_ANNOTATION)


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


def test_the_steward_is_granted_the_priority_of_an_add_on_outside_of_the_systems_namespace(client: Client) -> None:
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


@pytest.fixture(scope="module")
def asking(plane: ControlPlane, config: ControlPlaneConfig) -> admission.Asking:
    """The campaign's namespace as the stack makes it, with a steward that may create jobs."""
    one = admission.Asking(config.endpoint, plane.ca_pem, (config.pki / "admin.crt", config.pki / "admin.key"))
    bounds = policies("bivouac-example", IMAGE.partition("@")[0], THEIRS.partition("@")[0], "example")
    plane.client().patch(Namespace, "campaign", {"metadata": {"labels": pod_security()}})
    place = {"namespace": "campaign"}
    rules = [
        {"apiGroups": ["batch", "jobset.x-k8s.io", "kubeflow.org"], "resources": ["jobs", "jobsets", "mpijobs"],
         "verbs": ["create"]},
    ]  # fmt: skip
    kubectl.apply(config, [yaml.safe_load((share_dir("mpi-operator") / "kubeflow.org_mpijobs.yaml").read_text())])
    kubectl.wait(config, "established", "crd/mpijobs.kubeflow.org")
    who = {"kind": "ServiceAccount", "name": "steward", "namespace": "campaign"}
    role = {"apiGroup": RBAC, "kind": "Role", "name": "steward"}
    accounts = ("archive", "data", "steward", "trainer")
    one.make(
        *({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**place, "name": name}} for name in accounts),
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {**place, "name": "steward"}, "rules": rules},
        {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {**place, "name": "steward"},
         "subjects": [who], "roleRef": role},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "bivouac-training"},
         "value": 1000},
        *bounds.values(),
        *(binding(policy) for policy in bounds.values()),
    )  # fmt: skip
    # The API server takes a policy up some time after it was made.
    strange = admission.changed(archive(), lambda pod: pod.update(serviceAccountName="default"))
    eventually(lambda: one.refusal(strange, admission.STEWARD))
    eventually(lambda: "image" in one.refusal(admission.as_pod(ROGUE)))
    return one


THEIRS = f"nvcr.io/nvidia/pytorch{admission.OTHER_DIGEST}"
ROGUE = admission.changed(gang(), lambda pod: pod["containers"][0].update(image="docker.io/library/busybox"))


def test_what_we_make_is_admitted(asking: admission.Asking) -> None:
    of_jobs = gang(), gang(sees_node=True), gang(supervisor_image=IMAGE, secrets=True)
    for manifest in (*of_jobs, archive(), archive(workload=True), copy(), fetch()):
        assert asking.refusal(manifest, admission.STEWARD) == ""
        assert asking.refusal(admission.as_pod(manifest)) == ""
    steward = {"kind": "Pod", "spec": steward_pod(IMAGE, 0, 2)}
    assert asking.refusal(admission.as_pod(steward)) == ""
    relaunched = admission.changed(
        gang(), lambda pod: pod["containers"][0].update(image=IMAGE.partition("@")[0] + admission.OTHER_DIGEST)
    )
    assert asking.refusal(relaunched, admission.STEWARD) == "", "another image of ours"


def test_the_driver_makes_the_job_that_prepares_the_data_and_its_account_runs_nothing_else(
    asking: admission.Asking,
) -> None:
    job = preparing()
    assert asking.refusal(job) == asking.refusal(admission.as_pod(job)) == ""
    assert "service account" in asking.refusal(job, admission.STEWARD)
    for change in (
        lambda pod: admission.first(pod).update(command=["python", "-m", "trainer.builtin.data"]),
        lambda pod: admission.first(pod).update(args=["x"]),
        lambda pod: pod["securityContext"].update(runAsUser=0, runAsNonRoot=False),
    ):
        assert "trainer.builtin.data.share" in asking.refusal(admission.as_pod(admission.changed(job, change)))


def test_what_no_pod_of_ours_may_have_is_refused_whoever_asks(asking: admission.Asking) -> None:
    for name, (change, word) in admission.FORBIDDEN.items():
        asked = admission.changed(gang(), change)
        said = asking.refusal(asked, admission.STEWARD)
        assert "bivouac-example-steward" in said and re.search(word, said), (name, said)
        said = asking.refusal(admission.as_pod(asked))
        assert re.search(word, said), (name, said)


def test_the_steward_has_no_account_but_two_and_the_archives_is_for_the_archive(asking: admission.Asking) -> None:
    ours = (gang(), admission.FORBIDDEN_TO_THE_STEWARD), (archive(), admission.FORBIDDEN_TO_THE_ARCHIVE)
    for manifest, table in ours:
        for name, (change, word) in table.items():
            said = asking.refusal(admission.changed(manifest, change), admission.STEWARD)
            assert "bivouac-example-steward" in said and word in said, (name, said)
    for change in (
        lambda pod: admission.first(pod)["securityContext"]["capabilities"].update(add=["DAC_OVERRIDE", "CHOWN"]),
        lambda pod: pod["initContainers"][0]["securityContext"]["capabilities"].update(add=["DAC_OVERRIDE"]),
    ):
        said = asking.refusal(admission.changed(archive(workload=True), change), admission.STEWARD)
        assert "capabilities: drop ALL" in said, said
    as_root = admission.changed(copy(), lambda pod: pod["securityContext"].update(runAsUser=0, runAsNonRoot=False))
    assert "infra.checkpoints.copies send` as user 65532" in asking.refusal(as_root, admission.STEWARD)


def test_a_workloads_image_runs_in_the_jobs_own_container_only(asking: admission.Asking) -> None:
    """It gets no right beside the trainer's: no account of steward or archive, no init container."""

    def of_theirs(manifest: dict[str, Any], part: str = "containers") -> dict[str, Any]:
        return admission.changed(manifest, lambda pod: pod[part][0].update(image=THEIRS))

    whole = gang(supervisor_image=IMAGE)
    assert asking.refusal(of_theirs(whole), admission.STEWARD) == ""
    assert asking.refusal(admission.as_pod(of_theirs(whole))) == ""
    steward = {"kind": "Pod", "spec": steward_pod(IMAGE, 0, 2)}
    for manifest in (of_theirs(whole, "initContainers"), of_theirs(archive()), of_theirs(steward)):
        assert "image" in asking.refusal(admission.as_pod(manifest))
    tagged = admission.changed(whole, lambda pod: pod["containers"][0].update(image="nvcr.io/nvidia/pytorch:25.10-py3"))
    assert "image" in asking.refusal(tagged, admission.STEWARD)


def test_the_stewards_mpi_jobs_are_bounded_as_its_others_and_their_pods_mount_its_keys_alone(
    asking: admission.Asking,
) -> None:
    job = mpi_gang(supervisor_image=IMAGE, secrets=True)
    assert asking.refusal(job, admission.STEWARD) == ""
    for table in (admission.FORBIDDEN, admission.FORBIDDEN_TO_THE_STEWARD):
        for name, (change, word) in table.items():
            if name == "the archive's account for another program":
                continue  # it is the archive's init container that this job lacks
            said = asking.refusal(admission.changed(job, change), admission.STEWARD)
            assert "bivouac-example-steward" in said and re.search(word, said), (name, said)

    def with_key(secret: str, **more: Any) -> dict[str, Any]:
        """As the operator makes it of the job."""
        volume = {"name": "ssh-auth", "secret": {"secretName": secret}}
        return admission.as_pod(admission.changed(job, lambda pod: pod["volumes"].append(volume) or pod.update(more)))

    assert asking.refusal(with_key("example-a1-ssh")) == ""
    for secret in ("example-a1-tls", "other-a1-ssh", "sh.helm.release.v1.jobset.v1"):
        assert "volumes" in asking.refusal(with_key(secret)), secret
    assert "volumes" in asking.refusal(with_key("example-a1-ssh", serviceAccountName="archive"))


def test_a_job_of_the_teams_own_runs_an_image_of_its_own_but_no_privileged_one(asking: admission.Asking) -> None:
    container = {"name": "theirs", "image": "docker.io/library/python:3.12"}
    theirs = {"kind": "Pod", "spec": {"containers": [container]}}
    assert asking.refusal(admission.as_pod(theirs)) == ""
    for name in ("privileged", "a folder of the node", "the node's network"):
        change, _ = admission.FORBIDDEN[name]
        spec = {"containers": [{**container, "securityContext": {}}], "volumes": []}
        said = asking.refusal(admission.as_pod(admission.changed({"kind": "Pod", "spec": spec}, change)))
        assert "violates PodSecurity" in said, (name, said)
    borrowed = {"kind": "Pod", "spec": {"containers": [container], "serviceAccountName": "archive"}}
    assert "denied request" in asking.refusal(admission.as_pod(borrowed))


def test_a_job_in_its_nodes_network_opens_that_and_nothing_else(asking: admission.Asking) -> None:
    hosted_cases.make(asking, IMAGE.partition("@")[0])
    strange = hosted_cases.there(admission.as_pod(ROGUE))
    eventually(lambda: "image" in asking.refusal(strange))
    privileged = hosted_cases.there(admission.changed(hosted_cases.of_the_team(), hosted_cases.ASKED["privileged"]))
    eventually(lambda: asking.refusal(privileged))
    steward = {"kind": "Pod", "spec": steward_pod(IMAGE, 0, 2)}
    ours = {"gang": gang(), "archive": archive(), "copy": copy(), "steward": steward}
    hosted_cases.test_only_the_job_is_in_its_nodes_network(asking, ours, gang(host_network=True))
    hosted_cases.test_others_may_there_what_pod_security_allows_and_no_more(asking)
    hosted_cases.test_who_looks_into_a_pod_there_is_bounded_too(asking)


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
