"""Facts that are looked up before check and plan: plain data, so that both stay pure."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from infra.plan.catalogue import InstanceType, Prices, Quota
from infra.plan.standing_facts import SeenCluster
from infra.spec.campaign import Capacity
from trainer.contract.frozen import Frozen


class Offer(Frozen):
    """One way to get the GPU nodes."""

    instance_type: str
    zone: str
    capacity: Capacity
    usd_per_hour: Decimal | None
    """Price of one node; None if only a request can tell it (capacity blocks are quoted per offering)."""
    quota_vcpus: int | None
    """Unused vCPUs of the account's quota for this family; None: not looked up."""
    as_of: date
    source: str


class Zone(Frozen):
    """An availability zone of the region, as this account sees it."""

    name: str
    """Account-specific: another account's `us-east-1a` is another zone."""
    id: str
    """Equal in all accounts."""
    state: str = "available"


class Unsuitable(Frozen):
    """A resource that was looked up and cannot be used."""

    what: str
    seen: str
    cure: str


class BaseImage(Frozen):
    """The EKS image from which a bake begins."""

    ami: str
    name: str
    published: date
    newer: tuple[str, ...]
    """Names of the releases that AWS has published since, the newest last."""


class LeftOut(Frozen):
    """A file or folder of a job's source that is not packed."""

    path: str
    size_bytes: int
    whole: bool
    """False: it has at least this size."""


class SourceFacts(Frozen):
    """A job's code, as far as check looks at it."""

    left_out: tuple[LeftOut, ...] = ()
    """The largest first."""
    refused: tuple[Unsuitable, ...] = ()
    """Why it cannot be packed."""
    doubtful: tuple[Unsuitable, ...] = ()
    absent: tuple[str, ...] = ()
    """Files that the spec names and that are left out; the file with the requirements also if there is none."""


class AclEntry(Frozen):
    """One rule of a network ACL; the first that matches a packet, by number, decides."""

    egress: bool
    number: int
    allow: bool
    protocol: str
    """IANA's number; `-1`: all."""
    first: int
    last: int
    """Ports, 0 to 65535 where the rule names none."""
    cidr: str


class SeenSubnet(Frozen):
    """A subnet of an existing VPC, as AWS describes it."""

    id: str
    zone: str
    cidr: str
    free_addresses: int
    public_addresses: bool
    """Instances get public addresses."""
    default_route: str
    """Id of the target of 0.0.0.0/0; empty without such a route, or if its target is gone."""
    s3_gateway: bool
    """Its route table leads to S3's gateway endpoint."""
    acl_id: str
    acl: tuple[AclEntry, ...]


class SeenNetwork(Frozen):
    """The existing VPC that a spec names, as AWS describes it."""

    exists: bool
    owner: str = ""
    """Account of the VPC."""
    mark: str = ""
    """A tag of Bivouac by which a teardown deletes it, as `key=value`."""
    cidrs: tuple[str, ...] = ()
    dns_support: bool = False
    dns_hostnames: bool = False
    name_servers: tuple[str, ...] = ()
    """Name servers of its DHCP options."""
    subnets: tuple[SeenSubnet, ...] = ()
    """Those of the spec that are in it."""
    endpoints: dict[str, tuple[str, ...]] = {}
    """Service with an interface endpoint and private DNS -> ranges that its security groups admit by HTTPS."""


class Admission(Frozen):
    """A rule of a security group that lets TCP in."""

    first: int
    last: int
    source: str
    """A range of addresses, or the id of a prefix list."""


class GivenFileSystem(Frozen):
    """An existing file system that a job mounts, as AWS describes it."""

    id: str
    kind: str
    """`LUSTRE`, or another of FSx's."""
    lifecycle: str
    vpc_id: str
    mount_name: str
    groups: tuple[str, ...] = ()
    """Security groups of its servers' interfaces."""
    admits: tuple[Admission, ...]


class SeenBuilders(Frozen):
    """The existing place for builders that a spec names, as AWS describes it."""

    subnet: SeenSubnet | None
    """None: account and region have no such subnet."""
    endpoints: dict[str, tuple[str, ...]] = {}
    """As of a `SeenNetwork`, in the subnet's VPC."""
    group: bool = False
    """The security group is in the subnet's VPC."""
    https_to: tuple[str, ...] = ()
    """Ranges, prefix lists and groups to which the security group lets HTTPS out."""
    let_in: tuple[str, ...] = ()
    """Those that it lets in, by any port."""


class QuotaRoom(Frozen):
    """One quota of the account and a campaign's demand."""

    quota: Quota
    field: str
    """Field of the spec that determines the demand."""
    allowed: int
    used: int
    wanted: int


class KubernetesSupport(Frozen):
    """End of EKS's support for its versions."""

    as_of: date
    source: str
    standard_until: dict[str, date | None]
    """Version -> last day of standard support; None: not announced on `as_of`."""


class DataSource(Frozen):
    """The data at `data.source`."""

    location: str
    """Folder that was inspected."""
    folder: bool
    matches: bool
    """True if at least one file fits the pattern."""
    tokens: int | None = None
    """Training tokens, as prepared on this machine, else estimated from the files' size; None: unknown."""
    prepared: bool = False
    text_bytes: int | None = None
    """About how much text the sources in S3 hold, by the spec or by their listing; None: unknown."""


class MemoryCure(Frozen):
    """A change of the spec, and the peak that it would have."""

    words: str
    peak: int


class MemoryPrediction(Frozen):
    """Predicted memory of the fullest rank in bytes."""

    parts: dict[str, int] = {}
    peak: int = 0
    usable: int = 0
    cures: tuple[MemoryCure, ...] = ()
    """Changes that need less, the one that costs the least time first; empty if it fits."""
    trouble: str = ""
    """Why nothing could be predicted."""


class Environment(Frozen):
    """Properties of the place where the nodes will run."""

    hardware: bool
    """Nodes have the hardware of the spec's instance type."""
    claims: bool
    """Nodes publish devices that a pod can claim."""
    public_registries: bool
    """Nodes and builder need images from registries outside AWS."""
    driver_outside: bool
    """The driver is in another network than the cluster."""
    inputs: bool
    """The account has the secrets and S3 prefixes that a job names; else they come from files of this machine."""
    makes_cluster: bool = True
    """The campaign makes nodes, cluster, network and file system, and AWS bills them; else it borrows them."""
    ender: str = "then a closer in the account tears down and certifies"
    """Who ends a campaign that its driver has left, in words."""


class Facts(Frozen):
    environment: Environment
    instance: InstanceType | None
    """Type of the GPU nodes; None: the catalogue lacks it."""
    all_reduce_gb_s: float | None = None
    """Measured all-reduce bus bandwidth between two nodes; None: no source states it."""
    floor_gb_s: float = 0.0
    """Bus bandwidth that preflight's profile requires; 0: none, the speed is only reported."""
    instance_names: tuple[str, ...]
    """All types of the catalogue."""
    profiles: tuple[str, ...]
    """All preflight profiles of the catalogue."""
    regions: dict[str, str]
    """Every AWS region -> its partition."""
    prices: Prices
    offers: tuple[Offer, ...]
    kubernetes: KubernetesSupport
    data: DataSource
    memory: MemoryPrediction | None = None
    """None: not predicted; the model is so small that it fits, or only the trainer image can build it."""
    folders: tuple[str, ...] = ()
    """Folders of `init_from` and of a workload's `rehearsal.mounts` and `rehearsal.init_from` that exist."""
    programs: tuple[str, ...] = ()
    """Python files below a workload's source that its `evaluate` and `export` name."""
    first_token: str | None = None
    """Token that `data.tokenizer` puts before every text, empty for none; None: there is no such file to look at."""
    source: SourceFacts | None = None
    """A workload's source; None: it has none, or there is no such folder."""
    account: str | None = None
    """Account of the present credentials; None: not looked up."""
    zones: tuple[Zone, ...] | None = None
    """Zones of the region; None: not looked up."""
    sold: dict[str, tuple[str, ...]] | None = None
    """Instance type of the nodes -> zones of the region that offer it; None: not looked up."""
    reservation: Unsuitable | None = None
    """Reason why the spec's reservation cannot hold the nodes; None: it can, or was not looked up."""
    network: SeenNetwork | None = None
    """The existing VPC of the spec; None: it has none, or was not looked up."""
    file_systems: tuple[GivenFileSystem, ...] | None = None
    """Those of a job's mounts that exist; None: not looked up."""
    quotas: tuple[QuotaRoom, ...] = ()
    """Quotas of the campaign's resources besides GPU nodes, as far as they were looked up."""
    base: Unsuitable | None = None
    """Reason why the trainer image's base cannot be used; None: it can, or was not looked up."""
    steward_base: Unsuitable | None = None
    """The same of the steward image's base."""
    links: dict[str, Unsuitable] = {}
    """Mount -> reason why FSx would not link its bucket; empty as well where nobody looked."""
    builders: SeenBuilders | None = None
    """The place for builders that the spec names; None: it names none, or was not looked up."""
    node_image: Unsuitable | None = None
    """Reason why the AMI that the spec names for GPU nodes, or the base from which theirs is baked, cannot be used;
    None: it can, or was not looked up."""
    node_base: BaseImage | None = None
    """The image from which the nodes' is baked; None: nothing is baked, it is not there, or was not looked up."""

    cluster: SeenCluster | None = None
    """What the existing cluster of the spec answers; None: it has none, or was not asked."""

    @property
    def offer(self) -> Offer | None:
        """The cheapest offer with a price, else any."""
        return min(self.offers, key=lambda o: (o.usd_per_hour is None, o.usd_per_hour or 0), default=None)
