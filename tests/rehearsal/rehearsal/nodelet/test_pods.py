"""Pods on machines that have joined a real control plane."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import infra
from infra.rehearsal.nodelet.machine import Machine
from tests.worlds.nodelet_site import INSIDE, NodeletSite, pod

pytestmark = INSIDE
LOOK_AROUND = """
import json, os, pathlib, sys
seen = {
    "python": sys.executable,
    "uid": os.getuid(),
    "pid": os.getpid(),
    "clone": os.path.exists(os.environ["CLONE"]),
    "home": sorted(os.listdir("/root")) if os.path.isdir("/root") else [],
    "work": os.path.exists(os.environ["WORK"]),
    "greeting": open(os.environ["GREETING"]).read(),
    "steps": open("/config/steps").read(),
    "word": os.environ["WORD"],
    "both": os.environ["BOTH"],
    "ip": os.environ["IP"],
    "token": len(open("/var/run/secrets/kubernetes.io/serviceaccount/token").read()) > 100,
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "endpoint": os.environ["AWS_ENDPOINT_URL"],
}
try:
    open("/usr/intruder", "w")
except OSError as error:
    seen["usr"] = error.errno
open("/nvme/state", "w").write("kept")
open("/dev/termination-log", "w").write("last words")
print(json.dumps(seen), flush=True)
sys.exit(7)
"""
"""What a pod sees of its own machine, printed; it ends with 7 and last words."""


def test_a_jobs_pod_has_its_own_root_and_its_end_is_reported(site: NodeletSite, image: str) -> None:
    env = [
        {"name": "CLONE", "value": str(Path(infra.__file__).parent)},
        {"name": "WORK", "value": str(site.work)},
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
    site.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "look"}, "spec": job})
    site.until(lambda: site.see("job", "look")["status"].get("failed"))
    print(f"job over after {time.monotonic() - asked:.1f} s")
    (one,) = site.see("pods", "-l", "job-name=look")["items"]
    end = one["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (end["exitCode"], end["reason"], end["message"]) == (7, "Error", "last words")
    assert end["startedAt"] <= end["finishedAt"] and one["status"]["phase"] == "Failed"
    document = json.loads(site.kubectl("logs", one["metadata"]["name"]))
    assert document == {
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
        "endpoint": site.world.endpoint_url,
        "usr": 30,
    }


def test_pods_find_each_other_by_headless_service_name_and_connect(site: NodeletSite, image: str) -> None:
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
    nodes = site.two_nodes()
    gang: dict[str, Any] = {"labels": {"in": "gang"}, "subdomain": "gang"}
    site.apply(
        pod("zero", image, listen, hostname="zero", nodeSelector={"kubernetes.io/hostname": nodes[0]}, **gang),
        pod("one", image, call, hostname="one", nodeSelector={"kubernetes.io/hostname": nodes[1]}, **gang),
    )
    assert site.ended("one")["exitCode"] == 0, site.kubectl("logs", "one")
    assert site.kubectl("logs", "one").split() == ["hello", site.pod("zero")["status"]["podIP"]]


def test_init_containers_come_first_and_a_failing_app_is_restarted_with_back_off(site: NodeletSite, image: str) -> None:
    shared = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    init = [
        {"name": "first", "image": image, "command": ["sh", "-c", "echo 1 >> /scratch/order"], **shared},
        {"name": "second", "image": image, "command": ["sh", "-c", "echo 2 >> /scratch/order"], **shared},
    ]
    script = "cat /scratch/order; echo run >> /scratch/runs; test $(wc -l < /scratch/runs) = 2"
    extra = {"volumes": [{"name": "scratch", "emptyDir": {}}], "initContainers": init, "restartPolicy": "OnFailure"}
    site.apply(pod("ordered", image, script, kind="sh", container=shared, **extra))
    site.until(lambda: site.pod("ordered")["status"]["phase"] == "Succeeded")
    assert site.pod("ordered")["status"]["containerStatuses"][0]["restartCount"] == 1
    assert site.kubectl("logs", "ordered").split() == ["1", "2"]
    timed = site.kubectl("logs", "--timestamps", "-f", "ordered").splitlines()
    assert [line.split()[1] for line in timed] == ["1", "2"] and timed == sorted(set(timed))
    at = datetime.fromisoformat(timed[0].split()[0][:19] + "+00:00")
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
    assert site.kubectl("logs", "ordered", f"--since-time={at.isoformat()}").split() == ["1", "2"]
    assert site.kubectl("logs", "ordered", f"--since-time={(at + timedelta(seconds=2)).isoformat()}") == ""
    assert site.kubectl("logs", "--timestamps", "--tail=1", "ordered").splitlines() == timed[-1:]


def test_a_claim_on_a_file_system_is_the_same_folder_on_every_node(site: NodeletSite, image: str) -> None:
    (site.world.fsx_root / "fs-1").mkdir(parents=True)
    size = {"storage": "1200Gi"}
    place = {"dnsname": "fs-1.fsx.us-east-1.amazonaws.com", "mountname": "abcd"}
    csi = {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-1", "volumeAttributes": place}
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    named = {"apiVersion": "v1", "metadata": {"name": "shared"}}
    claim = {**shared, "volumeName": "shared", "resources": {"requests": size}}
    site.apply(
        {**named, "kind": "PersistentVolume", "spec": {**shared, "capacity": size, "csi": csi}},
        {**named, "kind": "PersistentVolumeClaim", "spec": claim},
    )
    mounts = [
        {"name": "shared", "mountPath": "/shared-checkpoints", "subPath": "checkpoints"},
        {"name": "shared", "mountPath": "/data", "subPath": "data", "readOnly": True},
    ]
    script = "echo here > /shared-checkpoints/it; touch /data/no"
    volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
    site.apply(pod("claims", image, script, kind="sh", container={"volumeMounts": mounts}, volumes=volumes))
    site.until(lambda: "mount.lustre: No such device" in site.kubectl("get", "events", "-o", "wide"))
    for machine in site.world.machines.values():  # as a baked image leaves it
        assert isinstance(machine, Machine)
        baked = Path(machine.config.work) / "root/etc/bivouac/image.json"
        baked.parent.mkdir(parents=True, exist_ok=True)
        baked.write_text("{}")
    assert site.ended("claims")["exitCode"] == 1, "the data are mounted read-only"
    assert (site.world.fsx_root / "fs-1" / "checkpoints" / "it").read_text() == "here\n"
    assert site.kubectl("logs", "-f", "claims").endswith("Read-only file system\n")
    file_set = {**csi, "volumeHandle": "typo", "volumeAttributes": {**place, "mountname": "abcd/datsets"}}
    typo = {"apiVersion": "v1", "metadata": {"name": "typo"}}
    site.apply(
        {**typo, "kind": "PersistentVolume", "spec": {**shared, "capacity": size, "csi": file_set}},
        {**typo, "kind": "PersistentVolumeClaim", "spec": {**claim, "volumeName": "typo"}},
    )
    mounts = [{"name": "typo", "mountPath": "/mounts/team"}]
    volumes = [{"name": "typo", "persistentVolumeClaim": {"claimName": "typo"}}]
    site.apply(pod("mistyped", image, "true", container={"volumeMounts": mounts}, volumes=volumes))
    site.until(lambda: "No such file or directory" in site.kubectl("get", "events", "-o", "wide"))
    assert not (site.world.fsx_root / "fs-1" / "datsets").exists(), "Lustre makes no folder for who mounts it"


def test_a_deleted_pod_is_told_first_and_killed_after_its_grace(site: NodeletSite, image: str) -> None:
    polite = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    stubborn = "echo up; while :; do sleep 1; done"
    site.apply(
        pod("polite", image, polite, kind="sh"),
        pod("stubborn", image, stubborn, kind="sh", terminationGracePeriodSeconds=1),
    )

    def runs(name: str) -> bool:
        return bool(site.pod(name)["status"].get("phase") == "Running")

    def says_so(name: str) -> bool:
        return "up" in site.kubectl("logs", name)

    for name in ("polite", "stubborn"):
        site.until(partial(runs, name))
        site.until(partial(says_so, name))
    for name, shortest, longest in (("polite", 0.0, 25.0), ("stubborn", 0.9, 25.0)):
        asked = time.monotonic()
        site.kubectl("delete", "pod", name)
        assert shortest < time.monotonic() - asked < longest


def test_a_program_or_an_image_that_is_not_there_is_named(site: NodeletSite, image: str) -> None:
    other = image.rpartition("@")[0] + "@sha256:" + "0" * 64
    site.apply(pod("typo", image, "", kind="no-such-program"), pod("unknown", other, ""))
    end = site.ended("typo")
    assert (end["exitCode"], end["reason"]) == (128, "StartError") and "no-such-program" in end["message"]

    def waiting() -> Any:
        statuses = site.pod("unknown")["status"].get("containerStatuses", [])
        return statuses and statuses[0]["state"].get("waiting", {}).get("reason") == "ErrImagePull"

    site.until(waiting)
    site.kubectl("delete", "pod", "unknown")


def test_a_pod_is_ready_when_its_probe_says_so(site: NodeletSite, image: str) -> None:
    script = "import http.server as h; h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
    probe = {
        "readinessProbe": {"httpGet": {"path": "/", "port": "web"}},
        "ports": [{"name": "web", "containerPort": 8000}],
    }
    site.apply(pod("web", image, script, container=probe))

    def ready() -> bool:
        return any(
            c["type"] == "Ready" and c["status"] == "True" for c in site.pod("web")["status"].get("conditions", [])
        )

    site.until(ready)
    site.kubectl("delete", "pod", "web", "--grace-period=0", "--force")


def test_a_pod_with_an_association_gets_its_roles_credentials_and_another_none(site: NodeletSite, image: str) -> None:
    role = site.role("archive", "pods.eks.amazonaws.com", "AmazonS3FullAccess")
    site.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "archive"}})
    site.aws("eks").create_pod_identity_association(
        clusterName="camp", namespace="default", serviceAccount="archive", roleArn=role
    )
    script = "import boto3; print(boto3.client('sts').get_caller_identity()['Arn'])"
    site.apply(pod("known", image, script, serviceAccountName="archive"), pod("nobody", image, script))
    assert site.ended("known")["exitCode"] == 0, site.kubectl("logs", "known")
    assert ":assumed-role/archive/" in site.kubectl("logs", "known")
    assert site.ended("nobody")["exitCode"] == 1
    assert "Unable to locate credentials" in site.kubectl("logs", "nobody")


def test_a_pod_in_its_nodes_network_has_the_nodes_address_and_name_and_others_find_it(
    site: NodeletSite, image: str
) -> None:
    listen = """
import socket
there = socket.create_server(("", 29511))
print(socket.gethostname(), flush=True)
caller, _ = there.accept()
caller.sendall(b"hello")
"""
    call = """
import os, socket, time
while True:
    try:
        with socket.create_connection((os.environ["NODE"], 29511)) as there:
            print(there.recv(9).decode()); break
    except OSError:
        time.sleep(0.05)
"""
    nodes = site.two_nodes()
    hosted: dict[str, Any] = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    site.apply(pod("hosted", image, listen, nodeSelector={"kubernetes.io/hostname": nodes[0]}, **hosted))
    site.until(lambda: site.pod("hosted")["status"].get("podIP"))
    address = site.pod("hosted")["status"]["podIP"]
    assert address == site.pod("hosted")["status"]["hostIP"] == site.machine_of(nodes[0]).config.address
    env = {"env": [{"name": "NODE", "value": address}]}
    where: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": nodes[1]}}
    site.apply(pod("caller", image, call, container=env, **where))
    assert site.ended("caller")["exitCode"] == 0, site.kubectl("logs", "caller")
    assert site.kubectl("logs", "caller").split() == ["hello"] and site.ended("hosted")["exitCode"] == 0
    assert site.kubectl("logs", "hosted").split() == [nodes[0]], "its name is the node's"
