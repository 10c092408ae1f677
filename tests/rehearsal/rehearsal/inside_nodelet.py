"""Run by test_nodelet.py in private namespaces: emulated AWS, a real control plane, and machines that join it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import infra
from infra.rehearsal.nodelet.machine import Machine
from tests.rehearsal.rehearsal.confined_cases import (
    test_a_claim_on_a_folder_of_the_node_is_another_folder_on_every_node,
    test_a_file_that_is_for_its_user_alone_is_so_where_root_has_made_the_site,
    test_a_security_context_is_honoured,
    test_a_security_context_that_cannot_be_honoured_is_refused,
)
from tests.rehearsal.rehearsal.exec_cases import test_kubectl_and_our_client_run_commands_through_the_api_server
from tests.rehearsal.rehearsal.network_cases import (
    test_a_pod_in_its_nodes_network_has_the_nodes_address_and_name_and_others_find_it,
)
from tests.rehearsal.rehearsal.nodelet_camp import (
    LOOK_AROUND,
    WORK,
    Camp,
    camp,
    config_for,
    eventually,
    image,
    machine_of,
    pod,
    processes,
    reachable,
    world,
)

__all__ = [
    "camp",
    "image",
    "test_a_claim_on_a_folder_of_the_node_is_another_folder_on_every_node",
    "test_a_file_that_is_for_its_user_alone_is_so_where_root_has_made_the_site",
    "test_a_pod_in_its_nodes_network_has_the_nodes_address_and_name_and_others_find_it",
    "test_a_security_context_is_honoured",
    "test_a_security_context_that_cannot_be_honoured_is_refused",
    "test_kubectl_and_our_client_run_commands_through_the_api_server",
    "world",
]


def test_nodes_join_with_labels_taints_a_lease_and_a_provider_id(camp: Camp) -> None:
    for node in camp.see("nodes")["items"]:
        name, labels = node["metadata"]["name"], node["metadata"]["labels"]
        assert labels["bivouac.dev/pool"] == "gpu" and labels["eks.amazonaws.com/nodegroup"] == "gpu"
        assert labels["node.kubernetes.io/instance-type"] == "g5.12xlarge"
        assert labels["topology.kubernetes.io/zone"] == "us-east-1a"
        assert node["spec"]["providerID"].startswith("aws:///us-east-1a/i-")
        assert {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"} in node["spec"]["taints"]
        assert camp.see("lease", name, "-n", "kube-node-lease")["spec"]["holderIdentity"] == name


def test_a_gpu_is_offered_once_its_device_plugin_is_installed(camp: Camp) -> None:
    eventually(lambda: all(n["status"]["allocatable"].get("nvidia.com/gpu") == "4" for n in camp.see("nodes")["items"]))
    assert all("vpc.amazonaws.com/efa" not in n["status"]["allocatable"] for n in camp.see("nodes")["items"])


def test_a_jobs_pod_has_its_own_root_and_its_end_is_reported(camp: Camp, image: str) -> None:
    env = [
        {"name": "CLONE", "value": str(Path(infra.__file__).parent)},
        {"name": "WORK", "value": str(WORK)},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "word", "key": "pass"}}},
        {"name": "BOTH", "value": "$(WORD)-$(NOT)"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    mounts = [
        {"name": "config", "mountPath": "/config", "readOnly": True},
        {"name": "nvme", "mountPath": "/nvme"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    volumes = [
        {"name": "config", "configMap": {"name": "attempt"}},
        {"name": "nvme", "hostPath": {"path": "/mnt/k8s-disks/0/bivouac", "type": "DirectoryOrCreate"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "96Mi"}},
    ]
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    template = pod("-", image, LOOK_AROUND, container={"env": env, "volumeMounts": mounts, "resources": gpu})["spec"]
    job = {"backoffLimit": 0, "template": {"spec": {**template, "volumes": volumes}}}
    asked = time.monotonic()
    camp.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "look"}, "spec": job})
    eventually(lambda: camp.see("job", "look")["status"].get("failed"))
    print(f"job over after {time.monotonic() - asked:.1f} s")
    (one,) = camp.see("pods", "-l", "job-name=look")["items"]
    end = one["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (end["exitCode"], end["reason"], end["message"]) == (7, "Error", "last words")
    assert end["startedAt"] <= end["finishedAt"] and one["status"]["phase"] == "Failed"
    seen = json.loads(camp.kubectl("logs", one["metadata"]["name"]))
    assert seen == {
        "python": f"{sys.prefix}/bin/python",
        "uid": 0,
        "pid": 1,
        "clone": False,
        "home": sorted({p.split("/")[2] for p in (sys.prefix, sys.base_prefix) if p.startswith("/root/")}),
        "work": False,
        "greeting": "hi\n",
        "steps": "7",
        "word": "open",
        "both": "open-$(NOT)",
        "ip": one["status"]["podIP"],
        "token": True,
        "shm": 96 << 20,
        "endpoint": camp.world.endpoint_url,
        "usr": 30,
    }


def test_pods_find_each_other_by_headless_service_name_and_connect(camp: Camp, image: str) -> None:
    listen = "import socket; s = socket.create_server(('', 29500)); c, _ = s.accept(); c.sendall(b'hello')"
    call = """
import socket, time
for _ in range(200):
    try:
        with socket.create_connection(("zero.gang", 29500), 2) as there:
            print(there.recv(9).decode(), there.getpeername()[0]); break
    except OSError:
        time.sleep(0.05)
else:
    raise SystemExit(open("/etc/hosts").read())
"""
    nodes = camp.ready_nodes()
    gang: dict[str, Any] = {"labels": {"in": "gang"}, "subdomain": "gang"}
    camp.apply(
        pod("zero", image, listen, hostname="zero", nodeSelector={"kubernetes.io/hostname": nodes[0]}, **gang),
        pod("one", image, call, hostname="one", nodeSelector={"kubernetes.io/hostname": nodes[1]}, **gang),
    )
    assert camp.ended("one")["exitCode"] == 0, camp.kubectl("logs", "one")
    assert camp.kubectl("logs", "one").split() == ["hello", camp.pod("zero")["status"]["podIP"]]


def test_init_containers_come_first_and_a_failing_app_is_restarted_with_back_off(camp: Camp, image: str) -> None:
    shared = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    init = [
        {"name": "first", "image": image, "command": ["sh", "-c", "echo 1 >> /scratch/order"], **shared},
        {"name": "second", "image": image, "command": ["sh", "-c", "echo 2 >> /scratch/order"], **shared},
    ]
    script = "cat /scratch/order; echo run >> /scratch/runs; test $(wc -l < /scratch/runs) = 2"
    extra = {"volumes": [{"name": "scratch", "emptyDir": {}}], "initContainers": init, "restartPolicy": "OnFailure"}
    camp.apply(pod("ordered", image, script, kind="sh", container=shared, **extra))
    eventually(lambda: camp.pod("ordered")["status"]["phase"] == "Succeeded")
    assert camp.pod("ordered")["status"]["containerStatuses"][0]["restartCount"] == 1
    assert camp.kubectl("logs", "ordered").split() == ["1", "2"]
    timed = camp.kubectl("logs", "--timestamps", "-f", "ordered").splitlines()
    assert [line.split()[1] for line in timed] == ["1", "2"] and timed == sorted(set(timed))
    at = datetime.fromisoformat(timed[0].split()[0][:19] + "+00:00")
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
    assert camp.kubectl("logs", "ordered", f"--since-time={at.isoformat()}").split() == ["1", "2"]
    assert camp.kubectl("logs", "ordered", f"--since-time={(at + timedelta(seconds=2)).isoformat()}") == ""
    assert camp.kubectl("logs", "--timestamps", "--tail=1", "ordered").splitlines() == timed[-1:]


def test_a_claim_on_a_file_system_is_the_same_folder_on_every_node(camp: Camp, image: str) -> None:
    (camp.world.fsx_root / "fs-1").mkdir(parents=True)
    size = {"storage": "1200Gi"}
    csi = {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-1"}
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    named = {"apiVersion": "v1", "metadata": {"name": "shared"}}
    claim = {**shared, "volumeName": "shared", "resources": {"requests": size}}
    camp.apply(
        {**named, "kind": "PersistentVolume", "spec": {**shared, "capacity": size, "csi": csi}},
        {**named, "kind": "PersistentVolumeClaim", "spec": claim},
    )
    mounts = [
        {"name": "shared", "mountPath": "/shared-checkpoints", "subPath": "checkpoints"},
        {"name": "shared", "mountPath": "/data", "subPath": "data", "readOnly": True},
    ]
    script = "echo here > /shared-checkpoints/it; touch /data/no"
    volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
    camp.apply(pod("claims", image, script, kind="sh", container={"volumeMounts": mounts}, volumes=volumes))
    eventually(lambda: "mount.lustre: No such device" in camp.kubectl("get", "events", "-o", "wide"))
    for machine in camp.world.machines.values():  # as a baked image leaves it
        assert isinstance(machine, Machine)
        baked = Path(machine.config.work) / "root/etc/bivouac/image.json"
        baked.parent.mkdir(parents=True, exist_ok=True)
        baked.write_text("{}")
    assert camp.ended("claims")["exitCode"] == 1, "the data are mounted read-only"
    assert (camp.world.fsx_root / "fs-1" / "checkpoints" / "it").read_text() == "here\n"
    assert camp.kubectl("logs", "-f", "claims").endswith("Read-only file system\n")


def test_a_deleted_pod_is_told_first_and_killed_after_its_grace(camp: Camp, image: str) -> None:
    polite = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    stubborn = "echo up; while :; do sleep 1; done"
    camp.apply(
        pod("polite", image, polite, kind="sh"),
        pod("stubborn", image, stubborn, kind="sh", terminationGracePeriodSeconds=1),
    )

    def runs(name: str) -> bool:
        return bool(camp.pod(name)["status"].get("phase") == "Running")

    def says_so(name: str) -> bool:
        return "up" in camp.kubectl("logs", name)

    for name in ("polite", "stubborn"):
        eventually(partial(runs, name))
        eventually(partial(says_so, name))
    for name, shortest, longest in (("polite", 0.0, 25.0), ("stubborn", 0.9, 25.0)):
        asked = time.monotonic()
        camp.kubectl("delete", "pod", name)
        assert shortest < time.monotonic() - asked < longest


def test_a_program_or_an_image_that_is_not_there_is_named(camp: Camp, image: str) -> None:
    other = image.rpartition("@")[0] + "@sha256:" + "0" * 64
    camp.apply(pod("typo", image, "", kind="no-such-program"), pod("unknown", other, ""))
    end = camp.ended("typo")
    assert (end["exitCode"], end["reason"]) == (128, "StartError") and "no-such-program" in end["message"]

    def waiting() -> Any:
        statuses = camp.pod("unknown")["status"].get("containerStatuses", [])
        return statuses and statuses[0]["state"].get("waiting", {}).get("reason") == "ErrImagePull"

    eventually(waiting)
    camp.kubectl("delete", "pod", "unknown")


def test_a_pod_is_ready_when_its_probe_says_so(camp: Camp, image: str) -> None:
    script = "import http.server as h; h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
    probe = {
        "readinessProbe": {"httpGet": {"path": "/", "port": "web"}},
        "ports": [{"name": "web", "containerPort": 8000}],
    }
    camp.apply(pod("web", image, script, container=probe))

    def ready() -> bool:
        return any(
            c["type"] == "Ready" and c["status"] == "True" for c in camp.pod("web")["status"].get("conditions", [])
        )

    eventually(ready)
    camp.kubectl("delete", "pod", "web", "--grace-period=0", "--force")


def test_a_pod_with_an_association_gets_its_roles_credentials_and_another_none(camp: Camp, image: str) -> None:
    role = camp.role("archive", "pods.eks.amazonaws.com", "AmazonS3FullAccess")
    camp.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "archive"}})
    camp.aws("eks").create_pod_identity_association(
        clusterName="camp", namespace="default", serviceAccount="archive", roleArn=role
    )
    script = "import boto3; print(boto3.client('sts').get_caller_identity()['Arn'])"
    camp.apply(pod("known", image, script, serviceAccountName="archive"), pod("nobody", image, script))
    assert camp.ended("known")["exitCode"] == 0, camp.kubectl("logs", "known")
    assert ":assumed-role/archive/" in camp.kubectl("logs", "known")
    assert camp.ended("nobody")["exitCode"] == 1
    assert "Unable to locate credentials" in camp.kubectl("logs", "nobody")


def test_a_script_in_a_machine_has_root_its_role_and_a_disk_that_keeps(camp: Camp) -> None:
    machine = next(iter(camp.world.machines.values()))
    first = machine.run("mkdir -p /opt/baked && echo 1 > /opt/baked/it && id -u && hostname", 20)
    assert first.returncode == 0 and first.stdout.split()[0] == "0", first
    script = (
        "cat /opt/baked/it; python -c \"import boto3; print(boto3.client('sts').get_caller_identity()['Arn'])\"; exit 3"
    )
    second = machine.run(script, 30, {"EXTRA": "1"})
    assert second.returncode == 3, second
    assert second.stdout.split()[0] == "1" and "assumed-role/nodes/i-" in second.stdout
    with pytest.raises(subprocess.TimeoutExpired):
        machine.run("sleep 60", 0.5)


def test_a_machine_with_a_broken_node_config_does_not_join_and_says_why(camp: Camp) -> None:
    good = config_for(camp).user_data
    broken = Machine.start(config_for(camp, user_data=good.replace("certificateAuthority", "authority")))
    console = WORK / "machines" / "i-0broken" / "logs" / "console.log"
    try:
        eventually(lambda: "does not join" in console.read_text())
        assert "certificateAuthority" in console.read_text()
        assert broken.alive() and "ip-10-42-0-200.ec2.internal" not in camp.ready_nodes()
    finally:
        broken.kill()


def test_a_builder_needs_no_cluster(camp: Camp) -> None:
    work = str(WORK / "machines" / "i-0builder")
    config = config_for(camp, kind="builder", instance_id="i-0builder", user_data="", work=work, address="10.42.0.201")
    builder = Machine.start(config)
    try:
        ask = "import boto3; print(boto3.client('sts').get_caller_identity()['Arn'])"
        done = builder.run(f'python -c "{ask}" && ls / && ! ls {WORK}', 30)
        assert done.returncode == 0 and done.stdout.split()[0].endswith("assumed-role/nodes/i-0builder"), done
    finally:
        builder.kill()
    assert not builder.alive()


def test_a_cut_cable_heals_and_a_frozen_machine_goes_on(camp: Camp, image: str) -> None:
    name = camp.ready_nodes()[0]
    machine = machine_of(camp, name)
    ticks = "import time\nfor n in range(10**6): print(n, flush=True); time.sleep(0.05)"
    camp.apply(pod("ticking", image, ticks, nodeSelector={"kubernetes.io/hostname": name}))
    eventually(lambda: camp.pod("ticking")["status"].get("phase") == "Running")
    address = camp.pod("ticking")["status"]["podIP"]
    log = next((WORK / "machines").glob("*/logs/pods/default_ticking_*/main/0.log"))
    machine.freeze()
    before = log.read_text()
    time.sleep(0.3)
    assert log.read_text() == before
    machine.thaw()
    eventually(lambda: log.read_text() != before)
    machine.link(False)
    assert not reachable(address)
    machine.link(True)
    eventually(lambda: reachable(address))
    eventually(lambda: camp.kubectl("logs", "ticking", "--tail=1").strip().isdigit())


def test_of_a_machines_processes_the_one_that_works_most_dies_as_a_rank(camp: Camp, image: str) -> None:
    name = camp.ready_nodes()[0]
    machine, child = machine_of(camp, name), "[sys.executable, '-c', 'while True: pass']"
    waits = f"import subprocess, sys, time\nprint(subprocess.call({child}), flush=True)\ntime.sleep(600)"
    camp.apply(pod("working", image, waits, nodeSelector={"kubernetes.io/hostname": name}))
    eventually(lambda: camp.pod("working")["status"].get("phase") == "Running")
    time.sleep(1)
    machine.kill_rank()
    eventually(lambda: camp.kubectl("logs", "working").strip() == "-9")
    assert machine.alive() and camp.pod("working")["status"]["phase"] == "Running", "its parent lives on"
    camp.kubectl("delete", "pod", "working", "--now")


def test_power_loss_ends_the_pods_too(camp: Camp) -> None:
    machine = machine_of(camp, camp.pod("ticking")["spec"]["nodeName"])
    log = next((WORK / "machines").glob("*/logs/pods/default_ticking_*/main/0.log"))
    asked = time.monotonic()
    machine.kill()
    assert not machine.alive() and time.monotonic() - asked < 20, "a grace would be 30 s"
    left = log.read_text()
    time.sleep(0.2)
    assert log.read_text() == left
    assert not [line for line in processes() if "time.sleep(0.05)" in line]
