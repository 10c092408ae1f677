"""What inside_nodelet.py stands on: an emulated AWS, a real control plane, and a node group of two machines."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from infra.folders import tools_dir
from infra.rehearsal.aws import server
from infra.rehearsal.aws.strict.settings import SOFT
from infra.rehearsal.aws.world import World
from infra.rehearsal.nodelet.machine import MachineConfig
from infra.rehearsal.site import network
from tests import waiting
from tests.serving import serve

AWS, PLANE = "10.77.0.2", "10.77.0.10"
WORK = Path(os.environ["NODELET_WORK"])
OCI = "application/vnd.oci.image."
HOST_LAYER = "application/vnd.bivouac.host.layer.v1"

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


def eventually(probe: Callable[[], Any]) -> Any:
    return waiting.until(probe, consoles)


def consoles() -> str:
    return "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in WORK.glob("machines/*/logs/console.log"))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    network.add_addresses("lo", ())
    network.make_bridge("camp0", ["10.77.0.1/16", f"{AWS}/16", f"{PLANE}/16"])
    where = f"http://{AWS}:5000"
    made = World(work=WORK, tools=tools_dir(), endpoint_url=where, control_plane_address=PLANE, strictness=SOFT)
    http = server.make(made, AWS, 5000)
    made.start()
    serve(http)
    yield made
    made.stop()
    http.shutdown()


class Camp:
    """One cluster with two nodes, and hands to use it."""

    def __init__(self, world: World) -> None:
        self.world, self._session = world, boto3.Session(*world.operator_key, region_name="us-east-1")

    def aws(self, service: str) -> Any:
        return self._session.client(service, endpoint_url=self.world.endpoint_url)

    def role(self, name: str, service: str, *policies: str) -> str:
        actions = ["sts:AssumeRole", "sts:TagSession"]
        statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": actions}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        arn = str(self.aws("iam").create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"])
        for policy in policies:
            self.aws("iam").attach_role_policy(RoleName=name, PolicyArn=f"arn:aws:iam::aws:policy/{policy}")
        return arn

    def pitch(self) -> None:
        ec2, eks = self.aws("ec2"), self.aws("eks")
        vpc = ec2.create_vpc(CidrBlock="10.42.0.0/16")["Vpc"]["VpcId"]
        subnets = [
            ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.42.{i}.0/24", AvailabilityZone=f"us-east-1{zone}")["Subnet"]
            for i, zone in enumerate("ab")
        ]
        ids = [subnet["SubnetId"] for subnet in subnets]
        role = self.role("cluster", "eks.amazonaws.com", "AmazonEKSClusterPolicy")
        access = {"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": True}
        settings = {"subnetIds": ids, "endpointPublicAccess": False, "endpointPrivateAccess": True}
        eks.create_cluster(name="camp", version="1.36", roleArn=role, resourcesVpcConfig=settings, accessConfig=access)
        eks.get_waiter("cluster_active").wait(name="camp", WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        nodes = self.role(
            "nodes", "ec2.amazonaws.com", "AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"
        )
        scaling = {"minSize": 0, "maxSize": 4, "desiredSize": 2}
        eks.create_nodegroup(
            clusterName="camp",
            nodegroupName="gpu",
            nodeRole=nodes,
            subnets=ids[:1],
            scalingConfig=scaling,
            instanceTypes=["g5.12xlarge"],
            labels={"bivouac.dev/pool": "gpu"},
            taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}],
        )

    def kubectl(self, *words: str, given: object = None) -> str:
        argv = [str(tools_dir() / "kubectl"), f"--kubeconfig={self.world.control_planes['camp'].admin_kubeconfig}"]
        text = None if given is None else json.dumps(given)
        done = subprocess.run([*argv, f"--cache-dir={WORK}", *words], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + consoles()
        return done.stdout

    def see(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": list(objects)})

    def ready_nodes(self) -> list[str]:
        def ready(node: Any) -> bool:
            conditions = node.get("status", {}).get("conditions", [])
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        return [node["metadata"]["name"] for node in self.see("nodes")["items"] if ready(node)]

    def pod(self, name: str) -> Any:
        return self.see("pod", name)

    def ended(self, name: str) -> Any:
        """The terminated state of the pod's only container, once there."""

        def look() -> Any:
            statuses = self.pod(name).get("status", {}).get("containerStatuses", [])
            return statuses and statuses[0]["state"].get("terminated")

        return eventually(look)

    def push(self) -> str:
        """An image of one small layer on the host's; returns its reference."""
        ecr, buffer = self.aws("ecr"), io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            entry = tarfile.TarInfo("opt/probe/greeting.txt")
            entry.size, entry.uid, entry.gid = 3, 1000, 1000
            tar.addfile(entry, io.BytesIO(b"hi\n"))
        manifest = json.loads(
            ecr.batch_get_image(repositoryName="bivouac/base", imageIds=[{"imageTag": "host"}])["images"][0][
                "imageManifest"
            ]
        )
        ecr.create_repository(repositoryName="bivouac/trainer")
        config = {"config": {"Env": [f"PATH={sys.prefix}/bin:/usr/bin:/bin", "GREETING=/opt/probe/greeting.txt"]}}
        blobs = [(OCI + "config.v1+json", json.dumps(config).encode()), (OCI + "layer.v1.tar+gzip", buffer.getvalue())]
        blobs.append((HOST_LAYER, b""))
        manifest["config"] = self._upload(*blobs[0])
        manifest["layers"].append(self._upload(*blobs[1]))
        pushed = ecr.put_image(repositoryName="bivouac/trainer", imageManifest=json.dumps(manifest))["image"]
        registry = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
        return f"{registry}/bivouac/trainer@{pushed['imageId']['imageDigest']}"

    def _upload(self, kind: str, content: bytes) -> dict[str, Any]:
        ecr, where = self.aws("ecr"), {"repositoryName": "bivouac/trainer"}
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        upload = ecr.initiate_layer_upload(**where)["uploadId"]
        ecr.upload_layer_part(
            **where, uploadId=upload, partFirstByte=0, partLastByte=len(content) - 1, layerPartBlob=content
        )
        ecr.complete_layer_upload(**where, uploadId=upload, layerDigests=[digest])
        return {"mediaType": kind, "digest": digest, "size": len(content)}


@pytest.fixture(scope="module")
def camp(world: World) -> Camp:
    made = Camp(world)
    made.pitch()
    started = time.monotonic()
    eventually(lambda: len(world.machines) == 2)
    print(f"instances after {time.monotonic() - started:.1f} s")
    eventually(lambda: len(made.ready_nodes()) == 2)
    print(f"nodes ready after {time.monotonic() - started:.1f} s")
    made.apply(*settings())
    eventually(lambda: any(one["metadata"]["name"] == "default" for one in made.see("serviceaccounts")["items"]))
    return made


def settings() -> list[dict[str, Any]]:
    release = {"chart": {"metadata": {"name": "nvidia-device-plugin"}}}
    data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "attempt"}, "data": {"steps": "7"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "word"}, "stringData": {"pass": "open"}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "helm.sh/release.v1",
            "metadata": {
                "name": "sh.helm.release.v1.nvidia-device-plugin.v1",
                "namespace": "kube-system",
                "labels": {"owner": "helm", "name": "nvidia-device-plugin", "status": "deployed", "version": "1"},
            },
            "data": {"release": data},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "gang"},
            "spec": {"clusterIP": "None", "selector": {"in": "gang"}, "publishNotReadyAddresses": True},
        },
    ]


@pytest.fixture(scope="module")
def image(camp: Camp) -> str:
    return camp.push()


def pod(name: str, image: str, script: str, *, kind: str = "python", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": [kind, "-c", script], **spec.pop("container", {})}
    base = {"restartPolicy": "Never", "tolerations": [{"operator": "Exists"}], "containers": [container]}
    labels = spec.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {**base, **spec},
    }


def config_for(camp: Camp, **changes: Any) -> MachineConfig:
    known = next(iter(camp.world.machines.values())).config  # type: ignore[attr-defined]
    fresh = {
        "instance_id": "i-0broken",
        "hostname": "ip-10-42-0-200.ec2.internal",
        "address": "10.42.0.200",
        "pod_addresses": (),
        "work": str(WORK / "machines" / "i-0broken"),
    }
    return replace(known, **(fresh | changes))


def reachable(address: str) -> bool:
    """A refused connection is an answer too."""
    try:
        socket.create_connection((address, 9), 0.3).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def machine_of(camp: Camp, node: str) -> Any:
    provider = camp.see("node", node)["spec"]["providerID"]
    return camp.world.machines[provider.rpartition("/")[2]]


def processes() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines
