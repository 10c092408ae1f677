"""An emulated AWS, a real control plane, and a node group of two machines: for tests that are inside, once for all."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from tests.worlds.inside import CHANNEL

AWS, PLANE = "10.77.0.2", "10.77.0.10"
INSIDE = [pytest.mark.nightly, pytest.mark.inside("net", "pid", shared=True)]
"""The marks of every file that has the site."""
OCI = "application/vnd.oci.image."
HOST_LAYER = "application/vnd.bivouac.host.layer.v1"


@contextmanager
def emulated(work: Path) -> Iterator[World]:
    """An emulated AWS at an address of its own, whose machines have a bridge to it."""
    assert CHANNEL in os.environ, "a bridge is for a network of the test's own: mark it `inside`"
    network.add_addresses("lo", ())
    network.make_bridge("camp0", ["10.77.0.1/16", f"{AWS}/16", f"{PLANE}/16"])
    where = f"http://{AWS}:5000"
    world = World(work=work, tools=tools_dir(), endpoint_url=where, control_plane_address=PLANE, strictness=SOFT)
    http = server.make(world, AWS, 5000)
    world.start()
    serve(http)
    yield world
    world.stop()
    http.shutdown()


class NodeletSite:
    """One cluster with two nodes, and hands to use it."""

    def __init__(self, world: World) -> None:
        self.world, self.work = world, world.work
        self._session = boto3.Session(*world.operator_key, region_name="us-east-1")

    def until(self, probe: Callable[[], Any]) -> Any:
        """Return the first true value; one that never comes is told with what the machines' consoles say."""
        return waiting.until(probe, self._consoles)

    def _consoles(self) -> str:
        found = self.work.glob("machines/*/logs/console.log")
        return "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in found)

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

    def two_nodes(self) -> list[str]:
        """Return the names of both nodes, when both are ready."""
        return list(self.until(lambda: nodes if len(nodes := self.ready_nodes()) == 2 else None))

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
        placed = {"subnetIds": ids, "endpointPublicAccess": False, "endpointPrivateAccess": True}
        eks.create_cluster(name="camp", version="1.36", roleArn=role, resourcesVpcConfig=placed, accessConfig=access)
        eks.get_waiter("cluster_active").wait(
            name="camp", WaiterConfig={"Delay": 1, "MaxAttempts": int(waiting.HUNG_S)}
        )
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
        self.two_nodes()
        self.apply(*settings())
        accounts = "serviceaccounts"
        self.until(lambda: any(item["metadata"]["name"] == "default" for item in self.see(accounts)["items"]))

    def kubectl(self, *words: str, given: object = None) -> str:
        argv = [str(tools_dir() / "kubectl"), f"--kubeconfig={self.world.control_planes['camp'].admin_kubeconfig}"]
        text = None if given is None else json.dumps(given)
        done = subprocess.run([*argv, f"--cache-dir={self.work}", *words], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + self._consoles()
        return done.stdout

    def see(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": list(objects)})

    def ready_nodes(self) -> list[str]:
        def ready(node: Any) -> bool:
            conditions = node.get("status", {}).get("conditions", [])
            return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

        return [node["metadata"]["name"] for node in self.see("nodes")["items"] if ready(node)]

    def pod(self, name: str) -> Any:
        return self.see("pod", name)

    def ended(self, name: str) -> Any:
        """The terminated state of the pod's only container, once there."""

        def look() -> Any:
            statuses = self.pod(name).get("status", {}).get("containerStatuses", [])
            return statuses and statuses[0]["state"].get("terminated")

        return self.until(look)

    def machine_of(self, node: str) -> Any:
        provider = self.see("node", node)["spec"]["providerID"]
        return self.world.machines[provider.rpartition("/")[2]]

    def config_for(self, **changes: Any) -> MachineConfig:
        """Return the configuration of a machine beside the nodes, which has to be started by hand."""
        config = next(iter(self.world.machines.values())).config  # type: ignore[attr-defined]
        fresh = {
            "instance_id": "i-0broken",
            "hostname": "ip-10-42-0-200.ec2.internal",
            "address": "10.42.0.200",
            "pod_addresses": (),
            "work": str(self.work / "machines" / "i-0broken"),
        }
        return replace(config, **(fresh | changes))

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
