"""Gang jobs as Kubernetes objects: one pod per node, all or none. Pure functions."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from lightkube.resources.core_v1 import Pod

from infra.cluster.confinement import ROOT, container_context, leaving_a_dead_node, pod_context
from infra.cluster.mounting import GangMount, show
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
    SECRET_VALUE,
    SECRETS_COMMAND,
    SHARED_CLAIM,
    TRAINER_ACCOUNT,
)
from infra.spec.workload.sections import Resources
from infra.spec.workload.workload import GIB
from trainer.contract import (
    AGENT_PORT,
    CONFIG_FILE,
    DATA_MOUNT,
    LOCAL_CHECKPOINTS,
    NODE_TOLD,
    SHARED_CHECKPOINTS,
    Env,
)
from trainer.contract.frozen import Frozen
from trainer.contract.workload import EXPORT_FOLDER, EXPORTS, MPI_KEYS, SECRETS, SUPERVISOR, WORKSPACE

REPLICATED_JOB = "gang"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
CAMPAIGN_LABEL = "bivouac.dev/campaign"
ATTEMPT_LABEL = "bivouac.dev/attempt"
PULL_SECRET = "job-image"
"""The secret with the login to the registry of the job's image."""
REPLICA_LABEL = "training.kubeflow.org/replica-index"
"""Index in the gang of an MPIJob's pod, launcher first."""


class SecretKey(NamedTuple):
    """A value that a pod takes from a Secret of its namespace. Only the kubelet reads it."""

    variable: str
    """Name of the job's variable."""
    secret: str
    key: str


class GangJob(Frozen, extra="ignore"):
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
    """EFA devices come from a claim on a DRA driver instead of a device plugin."""
    command: tuple[str, ...]
    config_map: str
    grace_seconds: int
    resources: Resources = Resources()
    mounts: tuple[GangMount, ...] = ()
    """Folders of `/mounts`, and the claims that have them."""
    pull_secret: bool = False
    """Kubelets pull with the login in `PULL_SECRET`."""
    supervisor_image: str | None = None
    """Image with the supervisor of a workload, which an init container puts into the job's own container."""
    host_network: bool = False
    """The pods are in their nodes' network."""
    secrets: bool = False
    """An init container of `supervisor_image` fetches the job's secrets into the pod's memory."""
    secret_keys: tuple[SecretKey, ...] = ()
    """Where they lie in an existing cluster; empty where AWS has them."""
    judges: bool = False
    """The pod evaluates and exports: checkpoints are read-only for it, and it writes to a folder of its own beside."""
    by_mpirun: bool = False
    """The gang is an MPIJob."""
    each_to_its_end: bool = False
    """A pod that fails does not end the others. In training it does: they can do nothing without it."""
    shares: bool = True
    """Mount the shared file system, with data and checkpoints; else the pod reads and writes both in S3."""
    sees_node: bool = False
    """Mount, read-only, the files that the node writes about itself, such as the kernel's log of GPUs."""


def jobset(gang: GangJob) -> dict[str, Any]:
    """Return the JobSet. It restarts neither itself nor a pod: only the steward retries."""
    labels = labels_of(gang)
    job = {
        "parallelism": gang.nodes,
        "completions": gang.nodes,
        "completionMode": "Indexed",
        ("backoffLimitPerIndex" if gang.each_to_its_end else "backoffLimit"): 0,
        "template": {"metadata": {"labels": labels}, "spec": pod_spec(gang)},
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


def labels_of(gang: GangJob) -> dict[str, str]:
    return {CAMPAIGN_LABEL: gang.campaign, ATTEMPT_LABEL: str(gang.attempt)}


def rendezvous(gang: GangJob) -> str:
    """Return pod 0's address in the headless service, with torch's default port."""
    host = f"{gang.name}-launcher" if gang.by_mpirun else f"{gang.name}-{REPLICATED_JOB}-0-0"
    return f"{host}.{gang.name}:29500"


def index_of(pod: Pod) -> int:
    """Return the pod's index in the gang."""
    annotations, labels = (pod.metadata.annotations, pod.metadata.labels) if pod.metadata else (None, None)
    return int((annotations or {}).get(COMPLETION_INDEX) or (labels or {}).get(REPLICA_LABEL) or 0)


def volumes(
    config: str, *, data_read_only: bool = True, shm_gib: float | None = None, shares: bool = True
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (pod volumes, container mounts) for the contract's paths; `shares`: those of the shared file system."""
    limit = {} if shm_gib is None else {"sizeLimit": _bytes(shm_gib)}
    pod: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": config}},
        {"name": "shared", "persistentVolumeClaim": {"claimName": SHARED_CLAIM}},
        {"name": "local", "persistentVolumeClaim": {"claimName": LOCAL_CLAIM}},
        {"name": "shm", "emptyDir": {"medium": "Memory", **limit}},
    ]
    container: list[dict[str, Any]] = [
        {"name": "config", "mountPath": CONFIG_FILE.rpartition("/")[0], "readOnly": True},
        {"name": "shared", "mountPath": DATA_MOUNT, "subPath": "data", "readOnly": data_read_only},
        {"name": "shared", "mountPath": SHARED_CHECKPOINTS, "subPath": "checkpoints"},
        {"name": "local", "mountPath": LOCAL_CHECKPOINTS},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if not shares:
        pod, container = ([row for row in rows if row["name"] != "shared"] for rows in (pod, container))
    return pod, container


def _bytes(gib: float) -> str:
    return str(round(gib * GIB))


def on_gpu_nodes() -> dict[str, Any]:
    """Return the scheduling fields for a pod on the GPU pool."""
    return {
        "nodeSelector": {POOL_LABEL: GPU_POOL},
        "tolerations": [{"key": GPU_TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}],
    }


def pod_spec(gang: GangJob) -> dict[str, Any]:
    demand = gang.resources
    pod_volumes, mounts = volumes(gang.config_map, shm_gib=demand.shm_gib, shares=gang.shares)
    if gang.sees_node:
        pod_volumes.append({"name": "node", "persistentVolumeClaim": {"claimName": NODE_CLAIM}})
        mounts.append({"name": "node", "mountPath": NODE_TOLD, "readOnly": True})
    if gang.judges:
        pod_volumes, mounts = _judging(gang.campaign, pod_volumes, mounts)
    for mount in gang.mounts:
        show(mount, gang.judges, pod_volumes, mounts)
    starts: list[dict[str, Any]] = []
    if gang.supervisor_image is not None:
        for name, path in (("bivouac", SUPERVISOR.rpartition("/")[0]), ("workspace", WORKSPACE)):
            pod_volumes.append({"name": name, "emptyDir": {}})
            mounts.append({"name": name, "mountPath": path})
        starts = [_supervisor(gang.supervisor_image, mounts[-2])]
        if gang.secrets:
            pod_volumes.append({"name": "secrets", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}})
            mounts.append({"name": "secrets", "mountPath": SECRETS.rpartition("/")[0], "readOnly": True})
            starts.append(_secrets(gang, gang.supervisor_image, mounts))
    # The steward alone ends a gang. It keeps one whose pods answer, or cannot be asked, on a node that is not Ready.
    placing = on_gpu_nodes()
    placing["tolerations"] += leaving_a_dead_node(None)
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
    # Kubernetes accepts huge pages only beside a request of CPU or memory.
    requests = {**devices, "cpu": "100m" if demand.cpu is None else f"{round(demand.cpu * 1000)}m"}
    if demand.memory_gib is not None:
        requests["memory"] = _bytes(demand.memory_gib)
    resources |= {"limits": devices, "requests": requests}
    return {
        **claims,
        **placing,
        # The usual DNS policy would leave such a pod with the node's resolver, which knows no pod's name.
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if gang.host_network else {}),
        "restartPolicy": "Never",
        "serviceAccountName": TRAINER_ACCOUNT,
        **({"imagePullSecrets": [{"name": PULL_SECRET}]} if gang.pull_secret else {}),
        "automountServiceAccountToken": False,
        "securityContext": pod_context(ROOT),
        "priorityClassName": PRIORITY_CLASS,
        "terminationGracePeriodSeconds": gang.grace_seconds,
        "volumes": pod_volumes,
        **({"initContainers": starts} if starts else {}),
        "containers": [
            {
                "name": "trainer",
                "image": gang.image,
                "command": list(gang.command),
                "env": _environment(gang),
                "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
                "resources": resources,
                # EFA pins memory. The node image sets no limit on that for containers, so IPC_LOCK is not needed.
                "securityContext": container_context(),
                "volumeMounts": mounts,
            }
        ],
    }


def _judging(
    campaign: str, pod_volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes and mounts without the node's own disk, which the archive needs, the checkpoints read-only."""
    readable = [row for row in mounts if row["name"] != "local"]
    readable = [row | {"readOnly": True} if row["mountPath"] == SHARED_CHECKPOINTS else row for row in readable]
    exports = {"name": "shared", "mountPath": EXPORTS, "subPath": f"checkpoints/{campaign}/{EXPORT_FOLDER}"}
    return [row for row in pod_volumes if row["name"] != "local"], [*readable, exports]


def _supervisor(image: str, mount: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "supervisor",
        "image": image,
        "command": ["python", "-m", "trainer.supervisor.pack", SUPERVISOR],
        "securityContext": container_context(),
        "volumeMounts": [mount],
    }


def _secrets(gang: GangJob, image: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    config, values = (next(mount for mount in mounts if mount["name"] == name) for name in ("config", "secrets"))
    values_of_cluster = [
        {
            "name": f"{SECRET_VALUE}{row.variable}",
            "valueFrom": {"secretKeyRef": {"name": row.secret, "key": row.key}},
        }
        for row in gang.secret_keys
    ]
    return {
        "name": "secrets",
        "image": image,
        "command": list(SECRETS_COMMAND),
        "env": [*_environment(gang), *values_of_cluster],
        "securityContext": container_context(readOnlyRootFilesystem=True),
        "volumeMounts": [config, {**values, "readOnly": False}],
    }


def _environment(gang: GangJob) -> list[dict[str, Any]]:
    def field(name: Env, path: str) -> dict[str, Any]:
        return {"name": name.value, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    constants = {
        Env.CAMPAIGN: gang.campaign,
        Env.ATTEMPT: str(gang.attempt),
        Env.NODE_COUNT: str(gang.nodes),
        Env.RANKS_PER_NODE: str(gang.ranks_per_node),
        Env.RENDEZVOUS: rendezvous(gang),
        Env.CODE_DIGEST: gang.code_digest,
        Env.IMAGE_DIGEST: gang.image.rpartition("@")[2],
    }
    index = f"labels['{REPLICA_LABEL}']" if gang.by_mpirun else f"annotations['{COMPLETION_INDEX}']"
    return [
        *({"name": name.value, "value": value} for name, value in constants.items()),
        field(Env.NODE_NAME, "spec.nodeName"),
        field(Env.POD_IP, "status.podIP"),
        field(Env.NODE_RANK, f"metadata.{index}"),
    ]


MPI_GROUP, MPI_VERSION = "kubeflow.org", "v2beta1"


def key_secrets(campaign: str) -> str:
    """Return the pattern of the names of the operator's secrets for this campaign's attempts."""
    return f"^{re.escape(campaign)}-a[0-9]+-ssh$"


def mpijob(gang: GangJob) -> dict[str, Any]:
    """Return the MPIJob. It restarts neither itself nor a pod: only the steward retries."""
    labels = labels_of(gang)
    replicas = {"Launcher": 1, "Worker": gang.nodes - 1}
    template = {"metadata": {"labels": labels}, "spec": {**pod_spec(gang), "affinity": _one_a_node(labels)}}
    del template["spec"]["restartPolicy"]  # type: ignore[attr-defined]  # the operator takes it from the replicas
    return {
        "apiVersion": f"{MPI_GROUP}/{MPI_VERSION}",
        "kind": "MPIJob",
        "metadata": {"name": gang.name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "slotsPerWorker": gang.ranks_per_node,
            "runLauncherAsWorker": True,
            "sshAuthMountPath": MPI_KEYS,
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "mpiReplicaSpecs": {
                kind: {"replicas": count, "restartPolicy": "Never", "template": template}
                for kind, count in replicas.items()
                if count
            },
        },
    }


def _one_a_node(labels: dict[str, str]) -> dict[str, Any]:
    """Return the affinity: one pod of the attempt on a node, and all of them in one zone."""
    peers = {"labelSelector": {"matchLabels": {name: labels[name] for name in (CAMPAIGN_LABEL, ATTEMPT_LABEL)}}}
    return {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**peers, "topologyKey": "kubernetes.io/hostname"}]
        },
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**peers, "topologyKey": "topology.kubernetes.io/zone"}]
        },
    }
