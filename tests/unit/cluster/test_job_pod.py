"""The pod of a workload: whose image runs in it, and what it asks of its node."""

from __future__ import annotations

from typing import Any

from infra.cluster.mounting import GangMount, gang_mounts
from infra.spec.workload.sections import Resources
from tests.example import example_spec
from tests.pods import IMAGE, gang
from tests.unit.campaign.test_standby import deployment

THEIRS = "nvcr.io/nvidia/pytorch@sha256:" + "1" * 64


def pod(**changes: Any) -> dict[str, Any]:
    (job,) = gang(**changes)["spec"]["replicatedJobs"]
    spec: dict[str, Any] = job["template"]["spec"]["template"]["spec"]
    return spec


def shm(spec: dict[str, Any]) -> dict[str, Any]:
    (found,) = [volume["emptyDir"] for volume in spec["volumes"] if volume["name"] == "shm"]
    return dict(found)


def test_the_jobs_own_image_runs_and_the_supervisor_comes_from_ours() -> None:
    spec = pod(image=THEIRS, supervisor_image=IMAGE)
    assert [container["image"] for container in spec["containers"]] == [THEIRS]
    assert [container["image"] for container in spec["initContainers"]] == [IMAGE]
    shared = {mount["name"] for mount in spec["initContainers"][0]["volumeMounts"]}
    assert shared <= {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}


def test_without_resources_a_pod_asks_for_devices_and_room_to_be_placed() -> None:
    spec = pod()
    resources = spec["containers"][0]["resources"]
    assert resources["requests"] == {**resources["limits"], "cpu": "100m"}
    assert shm(spec) == {"medium": "Memory"}


def test_processors_memory_and_shared_memory_are_asked_for_as_the_spec_has_them() -> None:
    spec = pod(resources=Resources(cpu=90.5, memory_gib=1500, shm_gib=0.5))
    resources = spec["containers"][0]["resources"]
    assert (resources["requests"]["cpu"], resources["requests"]["memory"]) == ("90500m", str(1500 * 2**30))
    assert set(resources["limits"]) & {"cpu", "memory"} == set(), (
        "a job is not throttled, and ends as its node's memory does"
    )
    assert shm(spec) == {"medium": "Memory", "sizeLimit": str(2**29)}


LINKED = GangMount(name="corpus", claim="shared", sub_path="mounts/corpus")


def mounts_of(spec: dict[str, Any]) -> dict[str, Any]:
    """What the job finds where, by path."""
    rows = spec["containers"][0]["volumeMounts"]
    return {row["mountPath"]: row for row in rows if row["mountPath"].startswith(("/mounts", "/bivouac-mounts"))}


def test_a_mount_is_a_folder_of_the_shared_tier_that_nobody_writes() -> None:
    (found,) = mounts_of(pod(mounts=(LINKED,))).values()
    assert found == {"name": "shared", "mountPath": "/mounts/corpus", "subPath": "mounts/corpus", "readOnly": True}


def test_a_staged_mount_is_read_from_the_nodes_disk_and_by_the_judge_from_its_source() -> None:
    staged = LINKED.model_copy(update={"staged": True})
    mounts = mounts_of(pod(mounts=(staged,)))
    assert mounts["/mounts/corpus"]["name"] == "local" and mounts["/mounts/corpus"]["subPath"] == "staged/corpus"
    assert mounts["/mounts/corpus"]["readOnly"] and mounts["/bivouac-mounts/corpus"]["name"] == "shared"
    (only,) = mounts_of(pod(mounts=(staged,), judges=True)).values()
    assert (only["name"], only["mountPath"]) == ("shared", "/mounts/corpus")


def test_two_links_share_the_claim_of_the_campaigns_file_system() -> None:
    both = [GangMount(name=name, claim="shared", sub_path=f"mounts/{name}") for name in ("a", "b")]
    spec = pod(mounts=tuple(both))
    assert [row["name"] for row in spec["volumes"]].count("shared") == 1
    assert {path: row["readOnly"] for path, row in mounts_of(spec).items()} == {"/mounts/a": True, "/mounts/b": True}


def test_no_kubelet_makes_a_folder_on_somebodys_file_system() -> None:
    """A kubelet makes the folder of a `subPath` that is missing, whatever the container's `readOnly` says."""
    mounts = {
        "team": {"fsx": "fs-0123456789abcdef0", "path": "/datasets"},
        "out": {"fsx": "fs-0123456789abcdef0", "path": "/out", "writable": True},
    }
    job = {"script": "/t.py", "checkpoints": {"format": "marker"}, "mounts": mounts,
           "estimates": {"steps": 9, "step_seconds": 1}}  # fmt: skip
    spec = pod(mounts=gang_mounts(example_spec(training=None, data=None, workload=job)))
    found = mounts_of(spec)
    assert not any("subPath" in row for row in found.values())
    assert {path: (row["name"], row["readOnly"]) for path, row in found.items()} == {
        "/mounts/team": ("mount-team", True), "/mounts/out": ("mount-out", False)
    }  # fmt: skip
    assert {"mount-team", "mount-out"} <= {row["name"] for row in spec["volumes"]}


def evicted_after_s(spec: dict[str, Any], condition: str) -> float:
    """How soon Kubernetes evicts a pod from a node with this taint, by its page "Taints and Tolerations": at once
    without a toleration; the admission of DefaultTolerationSeconds adds one of 300 s to a pod without one of its own;
    one without `tolerationSeconds` holds for ever."""
    key = f"node.kubernetes.io/{condition}"
    own = [
        toleration
        for toleration in spec["tolerations"]
        if toleration.get("key") == key
        and toleration["operator"] == "Exists"
        and toleration.get("effect") in (None, "NoExecute")
    ]
    return min((one.get("tolerationSeconds", float("inf")) for one in own), default=300)


def test_kubernetes_never_evicts_a_gang_whose_nodes_the_steward_calls_unknown() -> None:
    for condition in ("not-ready", "unreachable"):
        assert evicted_after_s(pod(), condition) == float("inf")
        assert evicted_after_s(deployment(1)["template"]["spec"], condition) < 60, "the steward itself moves on"
