"""Inside a site: an EKS cluster that stands, made by somebody's own stack, and what its admin does for a tenant.

`python -m tests.rehearsal.standing.landlord lend LANDLORD TENANT KUBECONFIG NODES` provisions the landlord's spec up to
its cluster, lets nodes come, applies the grant of the tenant's spec, puts the images of its own bake into that spec,
and writes a kubeconfig with the driver's token. It prints what lies in the namespaces of its tenants; `look` does so
again. Where the tenant's spec names a queue, `lend` installs Kueue with that queue and room for the tenant's gang;
`preempt` gives the quota to another team's gang of higher priority, and `release` ends that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import boto3
import yaml
from lightkube import Client
from lightkube.codecs import load_all_yaml
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import (
    ConfigMap,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    ResourceQuota,
    Secret,
    Service,
    ServiceAccount,
    ServiceAccountToken,
)
from rich.console import Console

from infra import target
from infra.campaign.stages import STEPS, run_step
from infra.cluster.kubernetes import JobSet, create
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.preview.read_only import read_only_context
from infra.record.events import Stage
from infra.record.payloads.outputs import BakeOutput
from infra.session.context import Context
from infra.session.session import opened
from infra.spec.campaign import load
from tests.rehearsal.standing import landlords_queue as queue

SPACE, OTHERS, BUCKET, LABEL = "team-a", "team-b", "training", "h100"
KINDS: tuple[Any, ...] = (
    ConfigMap, Secret, Service, Deployment, Job, JobSet, Pod, PersistentVolumeClaim, ResourceQuota, ServiceAccount,
)  # fmt: skip


def provision(path: Path, nodes: int) -> tuple[Context, Client]:
    """The landlord's images, and its cluster with so many GPU nodes."""
    spec = load(path).spec
    console = Console(file=StringIO())
    with opened(spec, make_plan(spec, survey(spec)), console, target.site_facts()) as context:
        for step in STEPS:
            if step.stage in (Stage.BAKE, Stage.PROVISION):
                run_step(context, step)
        scaling = {"minSize": 0, "maxSize": nodes, "desiredSize": nodes}
        boto3.client("eks").update_nodegroup_config(
            clusterName=context.names.cluster, nodegroupName=context.names.gpu_group, scalingConfig=scaling
        )
        client = context.cluster_client()
        while len(ready := [node for node in client.list(Node) if _gpus(node)]) < nodes:
            time.sleep(0.5)
        for node in ready:
            assert node.metadata is not None and node.metadata.name is not None
            client.patch(Node, node.metadata.name, {"metadata": {"labels": {"gpu": LABEL}}})
        return context, client


def _gpus(node: Node) -> int:
    return int(((node.status.allocatable if node.status else None) or {}).get("nvidia.com/gpu", "0"))


def share(client: Client, claim: str) -> None:
    """A claim of the tenant's on the landlord's file system: a second volume of the same handle."""
    (volume,) = [item for item in client.list(PersistentVolume) if item.spec and item.spec.csi]
    assert volume.spec is not None
    volume.metadata = ObjectMeta(name=f"{SPACE}-{claim}")
    volume.spec.claimRef = None
    volume.status = None
    client.create(volume)
    size = volume.spec.capacity
    wanted = {
        "metadata": {"name": claim, "namespace": SPACE},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": f"{SPACE}-{claim}",
            "resources": {"requests": size},
        },
    }  # fmt: skip
    create(client, PersistentVolumeClaim.from_dict(wanted))


def login() -> dict[str, str]:
    """Keys of a user who may use one bucket, and nothing else of the account."""
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    iam = boto3.client("iam")
    iam.create_user(UserName="tenant")
    statement = {
        "Effect": "Allow",
        "Action": "s3:*",
        "Resource": [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"],
    }
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_user_policy(UserName="tenant", PolicyName="bucket", PolicyDocument=document)
    key = iam.create_access_key(UserName="tenant")["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


def admit(client: Client, tenant: Path) -> str:
    """Apply what `bivouac grant` prints, and what the page tells an admin to do beside; the driver's token."""
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli.main", "grant", str(tenant)], capture_output=True, text=True, check=True
    )
    for document in load_all_yaml(done.stdout):
        create(client, document)
    share(client, "scratch")
    client.create(Secret(metadata=ObjectMeta(name="s3-login", namespace=SPACE), stringData=login()))
    client.create(Namespace(metadata=ObjectMeta(name=OTHERS)))
    for space in (SPACE, OTHERS):
        client.create(ConfigMap(metadata=ObjectMeta(name="theirs", namespace=space), data={"a": "1"}))
    spec = TokenRequestSpec(audiences=[], expirationSeconds=86400)
    answer = client.create(ServiceAccountToken(metadata=ObjectMeta(), spec=spec), name="driver", namespace=SPACE)
    assert answer.status is not None
    return str(answer.status.token)


def kubeconfig(context: Context, token: str) -> dict[str, Any]:
    description = context.account.client("eks").describe_cluster(name=context.names.cluster)["cluster"]
    cluster = {
        "server": description["endpoint"],
        "certificate-authority-data": description["certificateAuthority"]["data"],
    }
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "racks",
        "clusters": [{"name": "racks", "cluster": cluster}],
        "users": [{"name": "driver", "user": {"token": token}}],
        "contexts": [{"name": "racks", "context": {"cluster": "racks", "user": "driver", "namespace": SPACE}}],
    }  # fmt: skip


def await_own_objects(client: Client) -> None:
    """Wait for what Kubernetes itself puts into each new namespace, a moment after the namespace."""
    while any(
        f"{space} {row} " not in objects(client)
        for space in (SPACE, OTHERS)
        for row in ("ConfigMap kube-root-ca.crt", "ServiceAccount default")
    ):
        time.sleep(0.2)


def objects(client: Client) -> str:
    """Every object that a campaign may touch, with its content: of the tenant's namespace, and of another's."""
    rows = [
        f"{space} {kind.__name__} {item.to_dict()['metadata']['name']} {_content(item.to_dict())}"
        for space in (SPACE, OTHERS)
        for kind in KINDS
        for item in client.list(kind, namespace=space)
    ]
    return "\n".join(sorted(rows))


def _content(document: dict[str, Any]) -> str:
    """What does not change by itself: a quota's use, and Kubernetes' own certificates, have their place elsewhere."""
    return json.dumps({name: document.get(name) for name in ("data", "spec")}, sort_keys=True, default=str)


def main() -> None:
    word, landlord, tenant, config, nodes = sys.argv[1:]
    if word != "lend":
        spec = load(Path(landlord)).spec
        client = read_only_context(spec, None, Console(file=StringIO())).cluster_client()
        print({"look": objects, "preempt": queue.preempt, "release": queue.release}[word](client))
        return
    context, client = provision(Path(landlord), int(nodes))
    bake = BakeOutput.of(context.outputs)
    document = yaml.safe_load(Path(tenant).read_text())
    document["image"] = {"base": bake.image, "steward_base": bake.steward_image}
    Path(tenant).write_text(yaml.safe_dump(document))
    Path(config).write_text(yaml.safe_dump(kubeconfig(context, admit(client, Path(tenant)))))
    if (section := load(Path(tenant)).spec.cluster) is not None and section.queue is not None:
        queue.lend(client, load(Path(tenant)).spec, section)
    await_own_objects(client)
    print(objects(client))


if __name__ == "__main__":
    main()
