"""The objects with which a campaign opens in an existing cluster, as `check --online` sends them. Pure."""

from __future__ import annotations

from typing import Any

from infra.campaign.launch import STEWARD, steward_pod
from infra.campaign.proving import health_check
from infra.cluster.gang import CAMPAIGN_LABEL, GangJob
from infra.cluster.standing import placing
from infra.plan import catalogue
from infra.plan.layout import layout
from infra.spec.campaign import Spec
from infra.spec.standing import StandingCluster

Object = dict[str, Any]
_CONFIG = "expectation.json"
_GRACE_S = 5


def openings(spec: Spec, cluster: StandingCluster) -> tuple[tuple[str, Object], ...]:
    """Return (words, manifest) of each object: the health check's gang, the steward, and what they need. Their pods
    are among them: the server checks a template only when a controller makes a pod of it."""
    job = health_gang(spec)
    gang = placing.gang(job, cluster)
    template = gang["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    steward = placing.steward_pod(steward_pod(spec.image.steward_base, 0, spec.nodes.count), cluster, spec.campaign)
    labels = {"app": STEWARD, CAMPAIGN_LABEL: spec.campaign}
    deployment = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {"app": STEWARD}},
        "template": {"metadata": {"labels": labels}, "spec": steward},
    }
    claim = [] if cluster.shared.storage_class is None else [("the shared claim", shared_claim_object(spec, cluster))]
    return (
        *claim,
        ("a config map", _object("v1", "ConfigMap", job.config_map, cluster, template["metadata"]["labels"])),
        ("the gang of the health check", gang),
        ("a pod of the gang", _pod(job.name, cluster, template["metadata"]["labels"], template["spec"])),
        ("the steward", _object("apps/v1", "Deployment", STEWARD, cluster, labels) | {"spec": deployment}),
        ("the steward's pod", _pod(STEWARD, cluster, labels, steward)),
    )


def health_gang(spec: Spec) -> GangJob:
    """Return the gang that proves the nodes, before placing."""
    shape, instance = layout(spec), catalogue.instance_type(spec.nodes.instance_type)
    return GangJob(
        name=f"{spec.campaign}-check",
        campaign=spec.campaign,
        attempt=0,
        image=spec.image.base,
        code_digest=spec.image.base.rpartition("@")[2],
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        accelerators=instance.accelerators,
        efa_interfaces=0,
        command=health_check(_CONFIG),
        config_map=f"{spec.campaign}-check",
        grace_seconds=_GRACE_S,
        each_to_its_end=True,
        host_network=spec.runtime.host_network,
    )


def _object(version: str, kind: str, name: str, cluster: StandingCluster, labels: dict[str, str]) -> Object:
    metadata = {"name": name, "namespace": cluster.namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _pod(name: str, cluster: StandingCluster, labels: dict[str, str], pod: Object) -> Object:
    single_pod = {**pod, "restartPolicy": "Never"}
    return _object("v1", "Pod", name, cluster, labels) | {"spec": single_pod}


def shared_claim_object(spec: Spec, cluster: StandingCluster) -> Object:
    """Return the claim of the shared tier, for a spec that names a storage class."""
    shared = cluster.shared
    name = placing.shared_claim(cluster, spec.campaign)
    return _object("v1", "PersistentVolumeClaim", name, cluster, {CAMPAIGN_LABEL: spec.campaign}) | {
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": shared.storage_class,
            "resources": {"requests": {"storage": f"{shared.capacity_gib}Gi"}},
        }
    }
