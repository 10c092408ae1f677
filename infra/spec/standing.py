"""The section `cluster`: an existing Kubernetes cluster, in which a campaign is one tenant."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from infra.spec.section import Section

STANDING = "kubernetes"
"""The target that is a cluster of somebody's, as the spec names it."""
PLACEHOLDERS = {"account": "000000000000", "region": STANDING, "zone": STANDING}
"""Values of the fields that only AWS has."""
WEBHOOK_KEY = "NOTIFY_WEBHOOK"
"""Key of the Secret with the login to S3, and variable of the pods that have it: where people are told."""
NOT_YET = "this command does not work in an existing cluster"

DnsLabel = Annotated[
    str, Field(pattern=r"^[a-z0-9]+(-+[a-z0-9]+)*$", max_length=63, description="small letters, digits and dashes")
]
ObjectName = Annotated[
    str, Field(pattern=r"^[a-z0-9]+([.-]+[a-z0-9]+)*$", max_length=253, description="the name of an object")
]
NetworkName = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9]+(-+[a-z0-9]+)*/)?[a-z0-9]+([.-]+[a-z0-9]+)*$",
        description="NAME or NAMESPACE/NAME of an object",
    ),
]
DeviceName = Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9]+([_.-]+[A-Za-z0-9]+)*$", max_length=317)]
"""A device plugin's: Kubernetes' own resources, such as `memory`, have no slash."""
LabelKey = Annotated[str, Field(pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]+([_.-]+[A-Za-z0-9]+)*$", max_length=317)]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]+([_.-]+[A-Za-z0-9]+)*)?$", max_length=63)]
HostPath = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", description="an absolute path")]


class Toleration(Section):
    """A taint that the campaign's pods tolerate, in Kubernetes' own form."""

    key: LabelKey
    """Key of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Exists`: any value of the taint; `Equal`: `value`."""
    value: LabelValue | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "NoExecute", "PreferNoSchedule"] | None = None
    """Effect of the taint. None: each."""


class StandingNodes(Section):
    """The GPU nodes of the cluster that the campaign may use."""

    labels: dict[LabelKey, LabelValue] = Field(min_length=1)
    """Labels of the nodes. Only pods on nodes with all of them are the gang's."""
    devices: dict[DeviceName, Annotated[int, Field(ge=1)]] = Field(min_length=1)
    """Devices that each pod takes of its node, by the name of their device plugin: `nvidia.com/gpu: 8`, and those of
    InfiniBand or RoCE, such as `rdma/hca: 8`."""
    tolerations: tuple[Toleration, ...] = (Toleration(key="nvidia.com/gpu", effect="NoSchedule"),)
    """Taints of the nodes."""
    networks: tuple[NetworkName, ...] = Field(default=(), exclude_if=lambda value: not value)
    """NetworkAttachmentDefinitions (Multus) of the gang's pods, as `NAME` of the namespace or `NAMESPACE/NAME`: of an
    SR-IOV network, one per adapter. Empty: the cluster's network alone."""
    runtime_class: ObjectName | None = None
    """RuntimeClass of the pods, such as `nvidia`. None: the nodes' default."""


class StandingShared(Section):
    """A volume that all pods mount (ReadWriteMany): Lustre, BeeGFS, GPFS, NFS, CephFS."""

    claim: ObjectName | None = None
    """An existing claim of the namespace. The campaign writes to folders of its own there, below `bivouac`."""
    storage_class: ObjectName | None = None
    """A storage class of the cluster, from which the campaign claims `capacity_gib`. Give this or `claim`."""
    capacity_gib: int = Field(ge=1)
    """Capacity that the campaign may fill."""
    write_mb_s: int = Field(ge=1)
    """Rate at which all nodes together write, in MB/s: plan and check reckon with it."""

    @model_validator(mode="after")
    def _has_one_source(self) -> StandingShared:
        if (self.claim is None) == (self.storage_class is None):
            raise ValueError("give either `claim`, a volume that exists, or `storage_class`, to claim one from")
        return self


class StandingS3(Section):
    """Any S3 (AWS, MinIO, Ceph), which keeps record and archive."""

    bucket: Annotated[str, Field(pattern=r"^[a-z0-9]+([.-]+[a-z0-9]+)*$", min_length=3, max_length=63)]
    """An existing bucket. The campaign writes below the prefix `bivouac/` only."""
    secret: ObjectName
    """Secret of the namespace with the login, under `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. If it also has
    `NOTIFY_WEBHOOK`, the address of a webhook as `notify.webhook` takes it, people are told there."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.-]+(:\d+)?$")] | None = None
    """URL of the service. None: AWS's own."""
    path_style: bool = True
    """The bucket stands in the path and not in the host's name, as MinIO and Ceph expect."""
    ca: str | None = None
    """File of this machine with the certificates (PEM) of the service's own CA. None: the public ones."""
    region: str = "us-east-1"
    """Region that requests are signed for."""


class StandingFabric(Section):
    """InfiniBand or RoCE between the nodes, and what of it the campaign must have."""

    adapters: Annotated[int, Field(ge=1)] | None = None
    """Active ports of each node for the gang's traffic. None: one of each adapter that the node has, and as many as
    most nodes."""
    one_leaf: bool = False
    """Each adapter of all nodes is below one leaf switch, as the fabric itself says, whatever the nodes' labels say."""
    device_class: ObjectName | None = None
    """DeviceClass of the nodes' adapters, where a DRA driver hands them out and no device plugin does: each pod claims
    `adapters` of it, or without that all of its node."""
    claim_template: ObjectName | None = None
    """ResourceClaimTemplate of the namespace in the place of `device_class`, where a driver wants more in a claim."""
    ipc_lock: bool = False
    """The gang's pods have the capability `IPC_LOCK`, for nodes whose container runtime bounds pinned memory."""

    @model_validator(mode="after")
    def _has_one_claim(self) -> StandingFabric:
        if self.device_class is not None and self.claim_template is not None:
            raise ValueError("give either `device_class`, or `claim_template`, which names a class itself")
        return self


class StandingTopology(Section):
    """The part of the network in which the whole gang is to be."""

    label: LabelKey
    """Label of the nodes whose value names the part, such as `topology.k8s.aws/network-node-layer-3` for a leaf."""
    required: bool = True
    """The gang waits until one part has room for it. False: it prefers that, and starts spread otherwise."""


class StandingCluster(Section):
    """An existing cluster. An admin applies once what `bivouac grant` prints; from then on a tenant's rights do."""

    context: Annotated[str, Field(min_length=1)]
    """Context of the kubeconfig (`KUBECONFIG`, else `~/.kube/config`) by which you reach the cluster."""
    namespace: DnsLabel
    """Namespace of the campaign. Other people's objects in it stay untouched."""
    nodes: StandingNodes
    """The GPU nodes."""
    system_labels: dict[LabelKey, LabelValue] = Field(default={})
    """Labels of the nodes that run the steward. Empty: any node."""
    shared: StandingShared
    """The shared tier."""
    local: HostPath = "/var/lib/bivouac"
    """Folder of the nodes for the local tier, best on NVMe."""
    s3: StandingS3
    """Record and archive."""
    pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets of the namespace with logins to the registries of the images."""
    priority_class: ObjectName | None = None
    """PriorityClass of the gang's pods. None: the cluster's default."""
    queue: ObjectName | None = Field(default=None, exclude_if=lambda value: value is None)
    """LocalQueue (Kueue) of the namespace, in which the gang waits for its quota. None: it starts at once, or not."""
    priority: ObjectName | None = Field(default=None, exclude_if=lambda value: value is None)
    """WorkloadPriorityClass (Kueue) of the gang: its place in the queue, and whom it preempts. None: that of its
    pods."""
    topology: StandingTopology | None = Field(default=None, exclude_if=lambda value: value is None)
    """One leaf, rack or block for the whole gang: by Kueue's topology-aware scheduling where `queue` is given, else by
    the pods' affinity. None: anywhere among the nodes."""

    fabric: StandingFabric = Field(default=StandingFabric(), exclude_if=lambda value: value == StandingFabric())
    """What preflight wants of InfiniBand or RoCE."""

    @model_validator(mode="after")
    def _has_a_queue_for_the_priority(self) -> StandingCluster:
        if self.priority is not None and self.queue is None:
            raise ValueError("`priority` is a place in a queue: give `queue`, or `priority_class` for the pods alone")
        return self


def fill(raw: Any) -> Any:
    """Return a spec's content for this target with the placeholders, and the shared tier as the estimates read it.
    Content for another target, and fields that are given, stay as they are."""
    if not isinstance(raw, dict) or raw.get("target") != STANDING:
        return raw
    content = {**PLACEHOLDERS, **raw}
    cluster = content.get("cluster")
    shared = cluster.get("shared") if isinstance(cluster, dict) else None
    if isinstance(shared, dict) and "storage" not in content:
        capacity, rate = shared.get("capacity_gib"), shared.get("write_mb_s")
        # Other values are refused by the section itself.
        if isinstance(capacity, int) and isinstance(rate, int) and capacity > 0 and rate > 0:
            content["storage"] = {"shared": shared_tier(capacity, rate)}
    return content


def shared_tier(capacity_gib: int, write_mb_s: int) -> dict[str, int]:
    """Return the fields of `storage.shared` for a volume: MB/s per TiB is rate x 1024 / GiB, at least 1."""
    return {"capacity_gib": capacity_gib, "throughput_mbs_per_tib": max(1, round(write_mb_s * 1024 / capacity_gib))}


def refuse_misplaced(target: str, cluster: StandingCluster | None) -> None:
    """Raise ValueError for a section `cluster` without its target, and the reverse."""
    if target == STANDING and cluster is None:
        raise ValueError("target kubernetes needs section `cluster`: context, namespace, nodes, shared and s3")
    if target != STANDING and cluster is not None:
        raise ValueError(f"section `cluster` has no meaning with target {target}: remove it")
