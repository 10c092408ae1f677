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
    cidr: str
    """Of the driver's subnets; must not overlap `network.cidr`."""
    route_table_ids: tuple[Annotated[str, Field(pattern=r"^rtb-[0-9a-f]{8,17}$")], ...] = Field(min_length=1)
    """Of the driver's subnets: each gets a route to the campaign."""


class Network(Section):
    cidr: str = "10.42.0.0/16"
    egress: Egress = Egress.NAT
    api_endpoint: ApiEndpoint = ApiEndpoint.PUBLIC
    api_allowed_cidrs: tuple[str, ...] = ()
    """Who may knock at the public endpoint; empty: everyone may, and is asked for a token."""
    driver_vpc: DriverVpc | None = None
    """Needed for a private endpoint: without it the driver, which is outside, could not enter its own cluster."""


class SharedStorage(Section):
    """FSx for Lustre, on SSD, in the two deployments that suit a campaign.

    SCRATCH_1 and PERSISTENT_1 are older and no cheaper for their speed, and disks are too slow for checkpoints;
    Intelligent-Tiering has no link to S3, through which nodes see their data.
    """

    capacity_gib: int = Field(default=1200, ge=1)
    deployment: Literal["SCRATCH_2", "PERSISTENT_2"] = "PERSISTENT_2"
    throughput_mbs_per_tib: int | None = Field(default=250, ge=1)
    """None where the deployment has only one (SCRATCH_2)."""
    efa: bool = False
    metadata_iops: Literal["automatic"] | Annotated[int, Field(ge=1)] | None = None
    """`automatic` grows with the capacity; a number is provisioned and billed. None: automatic where EFA needs a
    metadata configuration, else the file system's built-in one."""
    compression: Literal["NONE", "LZ4"] = "NONE"
    """LZ4 helps text; checkpoints hardly shrink and cost the file servers' time."""
    tune_clients: bool = True
    """The client settings that AWS advises for many cores and much memory, set at boot."""


class LocalStorage(Section):
    """The nodes' NVMe disks, joined to one file system."""

    layout: Literal["RAID0", "RAID10"] = "RAID0"
    """RAID0 has all of the capacity and speed; RAID10 survives a disk with half of both."""


class Archive(Section):
    """How the archive bucket keeps what this campaign leaves."""

    storage_class: Literal[
        "STANDARD", "INTELLIGENT_TIERING", "STANDARD_IA", "GLACIER_IR", "GLACIER", "DEEP_ARCHIVE"
    ] = "STANDARD"
    move_after: Duration = timedelta(days=30)
    """After so long objects move to `storage_class`; whole days."""
    lock_for: Duration | None = None
    """Governance lock: for so long nobody deletes an archived version without the right to bypass; whole days. It
    holds for everything that comes into the archive bucket from then on, of any campaign. Never a compliance lock:
    that nobody could lift, not even the account's owner."""


class Storage(Section):
    shared: SharedStorage = SharedStorage()
    local: LocalStorage = LocalStorage()
    archive: Archive = Archive()


class Encryption(Section):
    """At rest everything is encrypted; this says with whose key."""

    customer_key: bool = False
    """True: a key of the account's own, for buckets, file system, volumes, and the cluster's secrets."""
    key_arn: Annotated[str, Field(pattern=r"^arn:aws:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$")] | None = None
    """A key that is there already, of this account and region. From then on it encrypts the buckets, which are every
    campaign's: its policy must leave the account's roles to IAM, and let in the service-linked roles of Auto Scaling
    and FSx and the logs, as the foundation's own does (`infra/stack/access/key.py`). Nothing here changes that policy.
    None: the foundation makes one, and keeps it: what is archived under a key needs it for ever."""


class Addons(Section):
    """What the cluster holds besides what it cannot do without."""

    efa: Literal["device-plugin", "dra"] = "device-plugin"
    """Who hands out EFA devices, never both: they would hand out each device twice. Pods of ours take all of a node's,
    so the plugin is as good; `dra` also suits pods that take some, and needs Kubernetes 1.35."""
    node_monitoring: bool = True
    """EKS's agent, which finds broken nodes. EKS itself repairs the system node only: GPU nodes are the steward's."""
    dcgm_exporter: bool = True
    """GPU metrics for Prometheus, on every GPU node."""
    prometheus: bool = False
    """kube-prometheus-stack in the cluster, without storage of its own: it ends with the campaign."""
    kueue: bool = False
    """Queues and quotas for jobs of your own beside the gang; the gang itself never queues."""
    mpi_operator: bool = False
    """Takes MPIJobs of your own in the campaign's namespace (nccl-tests, say); the gang itself is a JobSet."""
    image_mirror: Annotated[str, Field(pattern=r"^[a-z0-9.:-]+(/[a-z0-9._-]+)*$")] | None = None
    """Registry (and path) that holds the images of charts and operators under their own names, as
    `123456789012.dkr.ecr.us-east-1.amazonaws.com/mirror`; what nodes without a way out pull from."""
