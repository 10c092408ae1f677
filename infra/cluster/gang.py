"""The gang jobs as Kubernetes objects: pure functions of what is to run. One pod per node, all or nothing."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from infra.cluster.confinement import ROOT, container_context, pod_context
from infra.spec.names import (
    EFA_CLAIM,
    GPU_POOL,
    GPU_TAINT_KEY,
    HUGE_PAGES_PER_POD,
    LOCAL_CLAIM,
    NAMESPACE,
    NODE_CLAIM,
    POOL_LABEL,
    PRIORITY_CLASS,
    SHARED_CLAIM,
    TRAINER_ACCOUNT,
)
from trainer.contract import (
    AGENT_PORT,
    CONFIG_FILE,
    DATA_MOUNT,
    LOCAL_CHECKPOINTS,
    NODE_TOLD,
    SHARED_CHECKPOINTS,
    Env,
)

REPLICATED_JOB = "gang"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
CAMPAIGN_LABEL = "bivouac.dev/campaign"
ATTEMPT_LABEL = "bivouac.dev/attempt"


class GangJob(BaseModel):
    """What a gang job needs to know."""

    model_config = ConfigDict(frozen=True)

    name: str
    campaign: str
    attempt: int
    image: str
    code_digest: str
    nodes: int
    ranks_per_node: int
    accelerators: int
    """GPUs per pod: all of a node's."""
    efa_interfaces: int
    efa_by_claim: bool = False
    """The devices come through a claim on a DRA driver, not as a count from a device plugin."""
    command: tuple[str, ...]
    config_map: str
    grace_seconds: int
    each_to_its_end: bool = False
    """A pod that fails ends no other, as it does in training, where the others can do nothing without it."""
    sees_node: bool = False
    """What the node tells of itself, its kernel's log of GPUs included, is mounted to be read."""


def jobset(gang: GangJob) -> dict[str, Any]:
    """The JobSet: `maxRestarts: 0` and no second try of a pod, since only the steward retries."""
    labels = {CAMPAIGN_LABEL: gang.campaign, ATTEMPT_LABEL: str(gang.attempt)}
    job = {
        "parallelism": gang.nodes,
        "completions": gang.nodes,
        "completionMode": "Indexed",
        ("backoffLimitPerIndex" if gang.each_to_its_end else "backoffLimit"): 0,
        "template": {"metadata": {"labels": labels}, "spec": _pod(gang)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": gang.name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": gang.name},
            "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def rendezvous(name: str) -> str:
    """Pod 0 by its headless-service name; torch's own default port."""
    return f"{name}-{REPLICATED_JOB}-0-0.{name}:29500"


def volumes(config: str, *, data_read_only: bool = True) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(pod volumes, container mounts) of the contract's paths."""
    pod: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": config}},
        {"name": "shared", "persistentVolumeClaim": {"claimName": SHARED_CLAIM}},
        {"name": "local", "persistentVolumeClaim": {"claimName": LOCAL_CLAIM}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    container: list[dict[str, Any]] = [
        {"name": "config", "mountPath": CONFIG_FILE.rpartition("/")[0], "readOnly": True},
        {"name": "shared", "mountPath": DATA_MOUNT, "subPath": "data", "readOnly": data_read_only},
        {"name": "shared", "mountPath": SHARED_CHECKPOINTS, "subPath": "checkpoints"},
        {"name": "local", "mountPath": LOCAL_CHECKPOINTS},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    return pod, container


def on_gpu_nodes() -> dict[str, Any]:
    """Scheduling fields that let a pod run on the GPU pool."""
    return {
        "nodeSelector": {POOL_LABEL: GPU_POOL},
        "tolerations": [{"key": GPU_TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}],
    }


def _pod(gang: GangJob) -> dict[str, Any]:
    pod_volumes, mounts = volumes(gang.config_map)
    if gang.sees_node:
        pod_volumes.append({"name": "node", "persistentVolumeClaim": {"claimName": NODE_CLAIM}})
        mounts.append({"name": "node", "mountPath": NODE_TOLD, "readOnly": True})
    devices = {"nvidia.com/gpu": str(gang.accelerators)}
    resources: dict[str, Any] = {}
    claims: dict[str, Any] = {}
    if gang.efa_interfaces and gang.efa_by_claim:
        resources["claims"] = [{"name": EFA_CLAIM}]
        claims = {"resourceClaims": [{"name": EFA_CLAIM, "resourceClaimTemplateName": EFA_CLAIM}]}
    elif gang.efa_interfaces:
        devices["vpc.amazonaws.com/efa"] = str(gang.efa_interfaces)
    if gang.efa_interfaces:
        devices["hugepages-2Mi"] = HUGE_PAGES_PER_POD
    # Kubernetes takes huge pages only beside a request of CPU or memory.
    resources |= {"limits": devices, "requests": {**devices, "cpu": "100m"}}
    return {
        **claims,
        **on_gpu_nodes(),
        "restartPolicy": "Never",
        "serviceAccountName": TRAINER_ACCOUNT,
        "automountServiceAccountToken": False,
        "securityContext": pod_context(ROOT),
        "priorityClassName": PRIORITY_CLASS,
        "terminationGracePeriodSeconds": gang.grace_seconds,
        "volumes": pod_volumes,
        "containers": [
            {
                "name": "trainer",
                "image": gang.image,
                "command": list(gang.command),
                "env": _environment(gang),
                "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
                "resources": resources,
                # EFA pins memory: the node image gives containers no limit on that, so none needs IPC_LOCK.
                "securityContext": container_context(),
                "volumeMounts": mounts,
            }
        ],
    }


def _environment(gang: GangJob) -> list[dict[str, Any]]:
    def field(name: Env, path: str) -> dict[str, Any]:
        return {"name": name.value, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    fixed = {
        Env.CAMPAIGN: gang.campaign,
        Env.ATTEMPT: str(gang.attempt),
        Env.NODE_COUNT: str(gang.nodes),
        Env.RANKS_PER_NODE: str(gang.ranks_per_node),
        Env.RENDEZVOUS: rendezvous(gang.name),
        Env.CODE_DIGEST: gang.code_digest,
        Env.IMAGE_DIGEST: gang.image.rpartition("@")[2],
    }
    return [
        *({"name": name.value, "value": value} for name, value in fixed.items()),
        field(Env.NODE_NAME, "spec.nodeName"),
        field(Env.POD_IP, "status.podIP"),
        field(Env.NODE_RANK, f"metadata.annotations['{COMPLETION_INDEX}']"),
    ]
