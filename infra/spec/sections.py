"""What a campaign stands on, as sections of the spec: network, storage, encryption, add-ons."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from infra.spec.duration import Duration
from infra.spec.section import Section

ENDPOINT_SERVICES = (
    "autoscaling",  # the steward gives broken nodes back
    "ec2",  # the CNI, nodeadm, the steward
    "ecr.api",
    "ecr.dkr",
    "eks",  # nodeadm, the steward
    "eks-auth",  # pod identity
    "fsx",  # the CSI driver
    "logs",
    "ssm",  # the builder
    "ssmmessages",
    "sts",
)
"""What nodes, add-ons and pods talk to without a NAT gateway; S3 has a gateway endpoint of its own, which is free."""


class Egress(StrEnum):
    """How private nodes reach AWS: through a NAT gateway, or only through interface endpoints."""

    NAT = "nat"
    ENDPOINTS = "endpoints"


class ApiEndpoint(StrEnum):
    """From where the cluster's API is reached: the internet (and the VPC), or the VPC and its peer alone."""

    PUBLIC = "public"
    PRIVATE = "private"


class DriverVpc(Section):
    """The VPC in which the driver runs, of the same account and region: the campaign's is peered with it."""

    vpc_id: Annotated[str, Field(pattern=r"^vpc-[0-9a-f]{8,17}$")]
    """Id of the VPC."""
    cidr: str
    """Range of the driver's subnets; it must not overlap `network.cidr`."""
    route_table_ids: tuple[Annotated[str, Field(pattern=r"^rtb-[0-9a-f]{8,17}$")], ...] = Field(min_length=1)
    """Route tables of the driver's subnets. Each gets a route to the campaign."""


class Network(Section):
    cidr: str = "10.42.0.0/16"
    """Range of the campaign's VPC."""
    egress: Egress = Egress.NAT
    """How private nodes reach AWS: through a NAT gateway, or only through interface endpoints."""
    api_endpoint: ApiEndpoint = ApiEndpoint.PUBLIC
    """From where the cluster's API is reached: from the internet and the VPC, or only from the VPC and its peer."""
    api_allowed_cidrs: tuple[str, ...] = ()
    """Ranges that may reach the public endpoint. Empty: everyone may, and still needs a token."""
    driver_vpc: DriverVpc | None = None
    """The driver's own VPC, which a private endpoint needs: without it the driver cannot reach the cluster."""


class SharedStorage(Section):
    """FSx for Lustre, on SSD, in the two deployments that suit a campaign.

    SCRATCH_1 and PERSISTENT_1 are older and no cheaper for their speed, and disks are too slow for checkpoints;
    Intelligent-Tiering has no link to S3, through which nodes see their data.
    """

    capacity_gib: int = Field(default=1200, ge=1)
    """Capacity of the file system, in the steps that FSx sells."""
    deployment: Literal["SCRATCH_2", "PERSISTENT_2"] = "PERSISTENT_2"
    """FSx deployment type. PERSISTENT_2 replicates its disks; SCRATCH_2 does not."""
    throughput_mbs_per_tib: int | None = Field(default=250, ge=1)
    """Throughput per TiB of capacity, of those that FSx sells. None for SCRATCH_2, which has only one."""
    efa: bool = False
    """Nodes reach the file system over EFA; PERSISTENT_2 only."""
    metadata_iops: Literal["automatic"] | Annotated[int, Field(ge=1)] | None = None
    """Metadata performance. `automatic` grows with the capacity; a number is provisioned and billed. None: `automatic`
    where EFA needs a metadata configuration, else the file system's built-in one."""
    compression: Literal["NONE", "LZ4"] = "NONE"
    """Compression in the file system. LZ4 helps text; checkpoints hardly shrink and cost the file servers' time."""
    tune_clients: bool = True
    """Set, at boot, the Lustre client settings that AWS advises for many cores and much memory."""


class LocalStorage(Section):
    """The nodes' NVMe disks, joined to one file system."""

    layout: Literal["RAID0", "RAID10"] = "RAID0"
    """RAID0 has all of the capacity and speed. RAID10 survives the loss of a disk, with half of both."""


class Archive(Section):
    """How the archive bucket keeps what this campaign leaves."""

    storage_class: Literal[
        "STANDARD", "INTELLIGENT_TIERING", "STANDARD_IA", "GLACIER_IR", "GLACIER", "DEEP_ARCHIVE"
    ] = "STANDARD"
    """S3 storage class that archived objects move to."""
    move_after: Duration = timedelta(days=30)
    """Age at which objects move to `storage_class`; whole days."""
    lock_for: Duration | None = None
    """Governance lock: during this time nobody deletes an archived version without the right to bypass; whole days. It
    holds for everything that comes into the archive bucket from then on, of any campaign. It is never a compliance
    lock, which nobody could lift, not even the account's owner."""


class Storage(Section):
    shared: SharedStorage = SharedStorage()
    """The shared tier: FSx for Lustre."""
    local: LocalStorage = LocalStorage()
    """The local tier: the nodes' NVMe."""
    archive: Archive = Archive()
    """The archive tier: S3."""


class Encryption(Section):
    """At rest everything is encrypted; this says with whose key."""

    customer_key: bool = False
    """Encrypt buckets, file system, volumes and the cluster's secrets with a key of the account's own."""
    key_arn: Annotated[str, Field(pattern=r"^arn:aws:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$")] | None = None
    """An existing key of this account and region. From then on it encrypts the buckets, which all campaigns share. Its
    policy must leave the account's roles to IAM, and let in the logs and the service-linked roles of Auto Scaling and
    FSx, as the foundation's own key does (`infra/stack/access/key.py`); nothing here changes that policy. None: the
    foundation makes a key and keeps it, since what is archived under a key needs it for ever."""


class Addons(Section):
    """What the cluster holds besides what it cannot do without."""

    efa: Literal["device-plugin", "dra"] = "device-plugin"
    """Who hands out EFA devices: the device plugin, or dynamic resource allocation (needs Kubernetes 1.35). Never both,
    since they would hand out each device twice. The gang takes all devices of a node; `dra` also suits pods that take
    some."""
    node_monitoring: bool = True
    """EKS's node monitoring agent, which finds broken nodes. EKS itself repairs system nodes only; the steward repairs
    GPU nodes."""
    dcgm_exporter: bool = True
    """GPU metrics for Prometheus, on every GPU node."""
    prometheus: bool = False
    """kube-prometheus-stack in the cluster, without storage of its own: its data ends with the campaign."""
    kueue: bool = False
    """Kueue: queues and quotas for jobs of your own beside the gang. The gang itself never queues."""
    mpi_operator: bool = False
    """The MPI operator, for MPIJobs of your own in the campaign's namespace, such as nccl-tests. The gang itself is a
    JobSet."""
    image_mirror: Annotated[str, Field(pattern=r"^[a-z0-9.:-]+(/[a-z0-9._-]+)*$")] | None = None
    """Registry (and path) that holds the images of charts and operators under their own names, such as
    `123456789012.dkr.ecr.us-east-1.amazonaws.com/mirror`. Nodes without a way out pull from it."""
