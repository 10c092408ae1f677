"""Inside a site: Kueue in the landlord's cluster, with a queue of which the tenant has no more than another team."""

from __future__ import annotations

import time
from typing import Any

from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_global_resource
from lightkube.resources.core_v1 import Pod

from infra.cluster.kubernetes import JobSet
from infra.cluster.standing.placing import gang
from infra.cluster.standing.queueing import GROUP, PRIORITY_LABEL, QUEUE_LABEL, VERSION, demand
from infra.spec.campaign import Spec
from infra.spec.standing import StandingCluster
from infra.standing.openings import health_gang
from tests.worlds.control_plane import release_secret, state_of

QUEUE, OTHERS, URGENT = "gpus", "team-b", "urgent"
GPU = "nvidia.com/gpu"
Object = dict[str, Any]
create_global_resource(GROUP, VERSION, "ResourceFlavor", "resourceflavors")


def lend(client: Client, spec: Spec, cluster: StandingCluster) -> None:
    """Install Kueue, and make a queue for one gang of the tenant's, which another team may take by its priority."""
    client.create(release_secret("kueue", "kueue"))
    while not state_of(client, "kueue"):
        time.sleep(0.2)
    names = sorted(demand(gang(health_gang(spec), cluster)))
    quotas = [{"name": name, "nominalQuota": str(spec.nodes.count if name == GPU else 100)} for name in names]
    group = {"coveredResources": names, "flavors": [{"name": "any", "resources": quotas}]}
    queue = {
        "namespaceSelector": {}, "resourceGroups": [group], "preemption": {"withinClusterQueue": "LowerPriority"},
    }  # fmt: skip
    rows: list[tuple[str, Object, Object]] = [
        ("ResourceFlavor", {"name": "any"}, {"spec": {}}),
        ("WorkloadPriorityClass", {"name": URGENT}, {"value": 1000}),
        ("ClusterQueue", {"name": QUEUE}, {"spec": queue}),
        *(("LocalQueue", {"name": QUEUE, "namespace": space}, {"spec": {"clusterQueue": QUEUE}})
          for space in (cluster.namespace, OTHERS)),
    ]  # fmt: skip
    for kind, metadata, content in rows:
        document = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata, **content}
        while not _made(client, document):
            time.sleep(0.2)


def _made(client: Client, document: Object) -> bool:
    """Make an object once Kueue's webhooks answer."""
    try:
        client.create(from_dict(document))
    except ApiError as error:
        assert "webhook" in str(error), error
        return False
    return True


def preempt(client: Client) -> str:
    """Take the whole quota for another team; the tenant's gang is gone from its nodes then. Its pods find no node."""
    resources = {"requests": {GPU: "1"}, "limits": {GPU: "1"}}
    container = {"name": "one", "image": "one", "resources": resources}
    pod = {"restartPolicy": "Never", "nodeSelector": {"gpu": "of-nobody"}, "containers": [container]}
    count = _gpus(client)
    job = {"spec": {"parallelism": count, "completions": count, "template": {"spec": pod}}}
    labels = {QUEUE_LABEL: QUEUE, PRIORITY_LABEL: URGENT}
    document = {
        "metadata": {"name": URGENT, "namespace": OTHERS, "labels": labels},
        "spec": {"suspend": True, "replicatedJobs": [{"name": "one", "template": job}]},
    }
    client.create(JobSet.from_dict(document))
    while client.get(JobSet, URGENT, namespace=OTHERS).to_dict()["spec"].get("suspend"):
        time.sleep(0.2)
    return "preempted"


def _gpus(client: Client) -> int:
    """The quota."""
    kind = create_global_resource(GROUP, VERSION, "ClusterQueue", "clusterqueues")
    (group,) = client.get(kind, QUEUE).to_dict()["spec"]["resourceGroups"]
    (flavour,) = group["flavors"]
    return next(int(row["nominalQuota"]) for row in flavour["resources"] if row["name"] == GPU)


def release(client: Client) -> str:
    """End the other team's gang."""
    client.delete(JobSet, URGENT, namespace=OTHERS)
    while list(client.list(Pod, namespace=OTHERS)):
        time.sleep(0.2)
    return "released"
