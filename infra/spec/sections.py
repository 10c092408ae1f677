"""Sections of the spec for infrastructure: network, storage, encryption, add-ons, people's access."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from infra.spec.duration import Duration
from infra.spec.monitoring.remote_write import RemoteWrite
from infra.spec.section import Section


class Capacity(StrEnum):
    """Purchase option of the GPU nodes."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVATION = "reservation"
    CAPACITY_BLOCK = "capacity-block"


class Egress(StrEnum):
    """Path from private nodes to AWS."""

    NAT = "nat"
    ENDPOINTS = "endpoints"


class ApiEndpoint(StrEnum):
    """Networks from which the cluster's API can be reached."""

    PUBLIC = "public"
    PRIVATE = "private"


class DriverVpc(Section):
    """The VPC of the driver, in the same account and region. The campaign's VPC is peered with it."""

    vpc_id: Annotated[str, Field(pattern=r"^vpc-[0-9a-f]{8,17}$")]
    """Id of the VPC."""
    cidr: str
    """Range of the driver's subnets; it must not overlap `network.cidr`."""
    route_table_ids: tuple[Annotated[str, Field(pattern=r"^rtb-[0-9a-f]{8,17}$")], ...] = Field(min_length=1)
    """Route tables of the driver's subnets. Each gets a route to the campaign."""


SubnetId = Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]


class Subnets(Section):
    """Private subnets of an existing VPC."""

    gpu: SubnetId
    """The GPU nodes and the shared file system, in the campaign's zone."""
    control_plane: tuple[SubnetId, SubnetId]
    """The control plane, in two zones. The first also holds the system nodes."""


SLIM_BASE = "bivouac/base:slim"


class Builders(Section):
    """An existing private place for builders. They get no public address; Systems Manager reaches them.
    `check --online` and `run` say what the subnet lacks."""

    subnet_id: SubnetId
    """Private subnet of the account, with a default route to a NAT gateway or its like. Endpoints alone (`ssm`,
    `ssmmessages`, `ecr.api`, S3) are enough where the node image is not baked."""
    security_group_id: Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")]
    """Security group of the subnet's VPC that lets HTTPS out; nothing needs to be let in."""


class Image(Section):
    base: str
    """`repository:tag` or `repository@sha256:...` in the account's own registry, pushed there once by a person: see
    `images/trainer.Dockerfile`. The bake adds one layer with the project."""
    steward_base: str = SLIM_BASE
    """The same for what the system node runs: Python and the steward's packages, without torch and CUDA. Target `slim`
    of that Dockerfile."""
    nodes: Literal["bake", "eks"] | Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")] = "bake"
    """AMI of the GPU nodes. `bake`: ours, by the roles in `playbooks`. `eks`: AWS's own for EKS, Amazon Linux 2023 and
    the accelerator, the newest when the campaign begins; a boot script sets it up. An id: somebody's own, derived from
    that one, which gets a Lustre client where it lacks one. Preflight demands the baked versions of `bake` only; of the
    others, a driver and an EFA module that are new enough for the trainer image and NCCL."""
    builders: Builders | None = None
    """Existing place where images are baked. None: the foundation's build network, whose builders have a public
    address."""


OWN_CIDR = "10.42.0.0/16"


class Network(Section):
    cidr: str = OWN_CIDR
    """Range of the VPC that the campaign makes."""
    egress: Egress = Egress.NAT
    """Path from private nodes to AWS: a NAT gateway (in an existing VPC any default route), or only interface
    endpoints."""
    api_endpoint: ApiEndpoint = ApiEndpoint.PUBLIC
    """Networks that reach the cluster's API: the internet and the VPC, or only the VPC and its peer."""
    api_allowed_cidrs: tuple[str, ...] = ()
    """Ranges that may reach the public endpoint: those that you come from. On AWS a public endpoint needs at least one;
    `0.0.0.0/0` admits the whole internet, which still needs a token. With a private endpoint in an existing VPC: the
    driver's ranges, there or in a network that is connected with it."""
    driver_vpc: DriverVpc | None = None
    """The driver's own VPC, which is peered with the VPC that the campaign makes. A private endpoint in that requires
    it: without it the driver cannot reach the cluster."""
    vpc_id: Annotated[str, Field(pattern=r"^vpc-[0-9a-f]{8,17}$")] | None = None
    """Id of an existing VPC of the account, in which the campaign makes nothing but security groups. None: the campaign
    makes a VPC. `check --online` and `run` say what the VPC lacks."""
    subnet_ids: Subnets | None = None
    """Subnets of `vpc_id`, which requires them."""

    @property
    def made(self) -> bool:
        """The campaign makes its network."""
        return self.vpc_id is None

    @property
    def driver_cidrs(self) -> tuple[str, ...]:
        """Ranges from which the driver reaches a private endpoint."""
        if self.driver_vpc is not None:
            return (self.driver_vpc.cidr,)
        return self.api_allowed_cidrs if self.api_endpoint is ApiEndpoint.PRIVATE else ()


class SharedStorage(Section):
    """FSx for Lustre on SSD, in the two deployments that suit a campaign.

    SCRATCH_1 and PERSISTENT_1 are older and no cheaper for their speed. HDDs are too slow for checkpoints.
    Intelligent-Tiering cannot be linked to S3, from which nodes read their data.
    """

    capacity_gib: int = Field(default=1200, ge=1)
    """Capacity of the file system, in the increments that FSx sells."""
    deployment: Literal["SCRATCH_2", "PERSISTENT_2"] = "PERSISTENT_2"
    """FSx deployment type. PERSISTENT_2 replicates its disks; SCRATCH_2 does not."""
    throughput_mbs_per_tib: int | None = Field(default=250, ge=1)
    """Throughput per TiB of capacity, one of the values that FSx sells. None for SCRATCH_2, which has only one."""
    efa: bool = False
    """Access to the file system over EFA; PERSISTENT_2 only."""
    metadata_iops: Literal["automatic"] | Annotated[int, Field(ge=1)] | None = None
    """Metadata performance. `automatic` grows with the capacity; a number is provisioned and billed. None: `automatic`
    if EFA needs a metadata configuration, else the file system's built-in one."""
    compression: Literal["NONE", "LZ4"] = "NONE"
    """Compression in the file system. LZ4 helps text; checkpoints hardly shrink and cost the file servers time."""
    tune_clients: bool = True
    """Set the Lustre client settings at boot that AWS advises for many cores and much memory."""


class LocalStorage(Section):
    """The nodes' NVMe disks, joined into one file system."""

    layout: Literal["RAID0", "RAID10"] = "RAID0"
    """RAID0 has the full capacity and speed. RAID10 survives the loss of a disk, with half of both."""


class Archive(Section):
    """Retention of the campaign's archived objects."""

    storage_class: Literal[
        "STANDARD", "INTELLIGENT_TIERING", "STANDARD_IA", "GLACIER_IR", "GLACIER", "DEEP_ARCHIVE"
    ] = "STANDARD"
    """S3 storage class that archived objects move to."""
    move_after: Duration = timedelta(days=30)
    """Age at which objects move to `storage_class`; whole days."""
    lock_for: Duration | None = None
    """Governance lock, in whole days: during this time only principals with the bypass right delete an archived
    version. It applies to everything that enters the archive bucket from then on, of any campaign. It is never a
    compliance lock, which nobody could lift, not even the account's owner."""


NO_FILE_SYSTEM = "none"


def _none_from_word(value: Any) -> Any:
    """Return None for the word; an empty field must not be mistaken for it."""
    if value == NO_FILE_SYSTEM:
        return None
    if value is None or isinstance(value, str):
        raise ValueError(f"must be the word `{NO_FILE_SYSTEM}`, or the fields of a file system")
    return value


class Storage(Section):
    shared: Annotated[
        SharedStorage | None,
        BeforeValidator(_none_from_word, json_schema_input_type=SharedStorage | Literal["none"]),
        PlainSerializer(lambda value: NO_FILE_SYSTEM if value is None else value, return_type=Any),
    ] = SharedStorage()
    """The shared tier: FSx for Lustre, or `none`: no file system. Then each committed checkpoint goes from the nodes'
    NVMe to S3 at once, and nodes read their data from S3. It saves the file system's bill where checkpoints are small;
    for the built-in trainer only."""
    local: LocalStorage = LocalStorage()
    """The local tier: the nodes' NVMe."""
    archive: Archive = Archive()
    """The archive tier: S3."""


class Encryption(Section):
    """The key of the encryption at rest. Everything is encrypted in any case."""

    customer_key: bool = False
    """Encrypt buckets, file system, volumes and the cluster's secrets with a key of the account."""
    key_arn: Annotated[str, Field(pattern=r"^arn:aws:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$")] | None = None
    """An existing key of this account and region. From then on it encrypts the buckets, which all campaigns share. Its
    policy must delegate to the account's IAM, and admit the logs and the service-linked roles of Auto Scaling and FSx,
    as the foundation's own key does (`infra/stack/access/key.py`); Bivouac does not change that policy. It carries the
    tag `bivouac:key`, by which its owner lets clusters use it. None: the foundation creates a key and keeps it, since
    archived objects need it for ever."""


class Addons(Section):
    """Optional parts of the cluster."""

    efa: Literal["device-plugin", "dra"] = "device-plugin"
    """Component that hands out EFA devices: the device plugin, or dynamic resource allocation (needs Kubernetes 1.35).
    Both together would hand out each device twice. The gang takes all devices of a node; `dra` also suits pods that
    take some."""
    node_monitoring: bool = True
    """EKS's node monitoring agent, which finds broken nodes. EKS repairs only system nodes; the steward repairs GPU
    nodes."""
    dcgm_exporter: bool = True
    """GPU metrics for Prometheus, on every GPU node."""
    prometheus: bool = True
    """Prometheus and Alertmanager on the system node (kube-prometheus-stack), with the alerts of `docs/runbooks`. They
    have no storage; the steward keeps their series with the record."""
    grafana: bool = Field(default=False, exclude_if=lambda value: not value)  # stored specs keep their digests
    """Grafana beside Prometheus, with the dashboards of `bivouac dashboard --grafana`."""
    remote_write: RemoteWrite | None = Field(default=None, exclude_if=lambda value: value is None)
    """Also write the series to Amazon Managed Prometheus, or to another endpoint, where they outlive the campaign."""
    kueue: bool = False
    """Kueue: queues and quotas for your own jobs beside the gang. The gang itself never queues."""
    mpi_operator: bool = False
    """The MPI operator, for your own MPIJobs in the campaign's namespace, such as nccl-tests. With `workload.launcher:
    mpirun` it is there in any case."""
    image_mirror: Annotated[str, Field(pattern=r"^[a-z0-9.:-]+(/[a-z0-9._-]+)*$")] | None = None
    """Registry (and path) that holds the images of charts and operators under their own names, such as
    `123456789012.dkr.ecr.us-east-1.amazonaws.com/mirror`. Nodes without internet access pull from it."""


THIS_MACHINE = "this-machine"
"""Profile of a rehearsal's nodes."""


class Preflight(Section):
    profile: str | None = None
    """Name of the expected node profile in the catalogue. None: the profile of the instance type, in a rehearsal
    `this-machine`."""
    rounds: int = Field(default=3, ge=1)
    """Most rounds in which unfit nodes are replaced."""
    pilot: bool | Literal["auto"] = "auto"
    """One GPU node is started first and proves image, imports, CUDA, NCCL, EFA and disks; only then the others are
    asked for. `auto`: from four nodes on, where a waiting node bills (on-demand, spot). Reservations and blocks bill
    in any case, so all their nodes start at once."""
    bus_bandwidth_share: float | None = Field(default=None, gt=0, le=1)
    """Part of the profile's measured bus bandwidth that the gang's all-reduce must reach. None: the catalogue's."""
    bus_bandwidth_gb_s: float | None = Field(default=None, gt=0)
    """Bus bandwidth that the gang's all-reduce must reach, instead of that part: for a type without a figure in the
    catalogue, or to use your own figure (from nccl-tests, or from the report of an earlier campaign)."""
    dcgm_level: int | None = Field(default=None, ge=1, le=4)
    """Also run `dcgmi diag -r` at this level on each node: 1 takes seconds, 2 two minutes, 3 half an hour, 4 up to two
    hours of paid time. It runs in the trainer's container, so `image.base` must contain DCGM, as
    `images/trainer.Dockerfile` does. None: DCGM does not run."""


LIMITS_WINDOW = timedelta(hours=24)
"""Window in which the attempts of a failure class are counted against its limit in `recovery`."""


SPARE_TIMEOUT = timedelta(minutes=10)


class Recovery(Section):
    """Limits per failure class and the rules above them. Limits stop loops: they hold within 24 hours,
    not for the whole campaign, since each node is expected to fail once in `node_mtbf_hours`."""

    act: Literal["act", "log"] = Field(default="act", exclude_if=lambda act: act == "act")
    """`log`: the steward decides and only says what it would have done: it ends no failed attempt, replaces no node and
    starts no next attempt. Somebody acts by `bivouac relaunch` or `bivouac down`. A stop that is requested, the budget
    and the deadline are still kept. Restarts in place are the pods' own: `restarts_in_place: 0` turns them off."""
    attempts_without_progress: int = Field(default=3, ge=1)
    """Attempts in a row without a newer committed checkpoint after which the campaign stops."""
    process_restarts: int = Field(default=10, ge=0)
    """Attempts that may fail within 24 hours because of process, storage, hang, start or interruption. One more stops
    the campaign."""
    restarts_in_place: int = Field(default=2, ge=0)
    """Times that the pods of an attempt of the built-in trainer stay after a process has died and its node is well, and
    all ranks start again from the node's disks. `process_restarts` does not count them. 0: every death ends the
    attempt. A job of your own has its launcher's restarts."""
    node_replacements: int = Field(default=5, ge=0)
    """Attempts that may fail within 24 hours because of a lost node. One more stops the campaign. `check` reports the
    limit that `node_mtbf_hours` requires."""
    repairs_per_hour: int = Field(default=10, ge=0)
    """Nodes that the steward may replace within an hour. One more stops the campaign."""
    heartbeat_timeout: Duration = timedelta(seconds=30)
    """Silence of a pod's `/status` after which the steward suspects the pod. A second source must confirm it."""
    hang_timeout: Duration = timedelta(minutes=10)
    """Time without a finished step that counts as a hang; starting and saving do not count."""
    startup_timeout: Duration = timedelta(minutes=20)
    """Longest time from a gang's launch to its first step. In preflight: until its containers run, including the first
    image pull."""
    capacity_timeout: Duration | None = None
    """Longest wait for nodes, at the first launch and for each replacement. Then the nodes are given back or the
    campaign stops. None: 45 minutes where waiting nodes bill; 4 hours in a reservation and 6 in a capacity block, which
    bill in any case and free a place only when EC2 has cleaned it."""
    min_nodes: int | None = Field(default=None, ge=1, exclude_if=lambda value: value is None)
    """Fewest nodes with which the gang goes on while a lost node has no successor: with the same global batch and order
    of data, and with more nodes again once they are there. None: all of `nodes.count`."""
    spare_timeout: Duration = Field(default=SPARE_TIMEOUT, exclude_if=lambda value: value == SPARE_TIMEOUT)
    """Longest wait for a lost node's successor before the gang starts with fewer nodes, down to `min_nodes`. Below
    `min_nodes` it waits for `capacity_timeout`."""
    blind_timeout: Duration = timedelta(hours=1)
    """Time without a writable record (S3, its KMS key) after which the gang is asked to commit and the GPU nodes are
    given back. An end that is due while the Kubernetes API cannot be reached waits as long."""
    node_mtbf_hours: float = Field(default=2000.0, gt=0)
    """Estimated mean time between failures of one node. It determines the checkpoint interval and the limits."""


class Role(StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"


class Access(Section):
    principal: Annotated[
        str,
        Field(
            pattern=r"^arn:aws:iam::[0-9]{12}:(role|user)/[A-Za-z0-9_+=,.@/-]+$",
            description="the ARN of an IAM role or user, with its path; not of a session, a group or the root",
        ),
    ]
    """ARN of an IAM role or user of the campaign's account. Of a role of IAM Identity Center the whole one, with
    `aws-reserved/sso.amazonaws.com/`."""
    role: Role
    """`viewer` sees the campaign's pods, logs and objects, no Kubernetes secret. `operator` also enters its containers
    (`exec`, `cp`) and changes its objects. `admin` may do all in the cluster, as whoever drives must."""
