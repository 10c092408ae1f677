"""The requirements that a node must meet before training, and the format of its report."""

from __future__ import annotations

from enum import StrEnum

from trainer.contract.frozen import Frozen

DCGM_LONGEST_S = {1: 180.0, 2: 600.0, 3: 3600.0, 4: 9000.0}
"""Longest time of each level of DCGM's diagnostic; NVIDIA states seconds, 2 min, 30 min, 1 to 2 h."""


AT_LEAST = ">= "
"""Prefix of a version that newer ones meet too."""


class PcieLink(Frozen):
    """The link of each GPU on a type whose machine wires fewer lanes than the card has."""

    lanes: int
    device: str
    """PCI device id of the card, four hexadecimal digits: DCGM finds the card's parameters by it."""


class GpuExpectation(Frozen):
    """The GPUs that a node must have, and their connections."""

    product: str
    """A word of the product's name, such as `H100`."""
    count: int
    memory_gib: float
    """Smallest memory of one GPU."""
    nvlinks: int
    """Active links of each GPU; 0 if the type has none or no source states their number."""
    nvswitch: bool
    """The GPUs are known to be connected by a switch: the driver's fabric state must be completed."""
    pcie: PcieLink | None = None
    """None: each GPU's link has all lanes of the card."""


class Limits(Frozen):
    """Limits that hold for every type. The infrastructure's catalogue has them, each with its source."""

    slowdowns: tuple[str, ...]
    """Reasons for lower clocks, in nvidia-smi's words, that a sound GPU does not have."""
    uncorrectable_errors: int
    """Most memory errors since boot that ECC could not correct."""
    nvlink_errors_per_s: float
    """Errors of one kind on one link, while the collective runs, from which on the link is broken."""
    xids: dict[str, tuple[int, ...]]
    """NVIDIA's immediate action -> Xids in the kernel's log."""


class Expectation(Frozen):
    """Preflight's requirements for a node, written from the instance profile to `/config/expectation.json`.

    A floor of 0 means that the figure is measured and reported only.
    """

    profile: str
    cpus: int
    memory_gib: float
    accelerators: int
    """CUDA devices that torch must see, and processes of the node in the collective; 0 on a CPU profile, where one
    process takes part, or two if the node is alone."""
    local_disk_gib: float
    """Free space required on the local tier."""
    shared_disk_gib: float
    mounts: tuple[str, ...]
    clock_skew_s: float
    """Largest skew from the median of the gang's clocks and from AWS's time."""
    all_reduce_mib: int
    bus_bandwidth_gb_s: float
    """Floor for the all-reduce over all nodes, GB/s."""
    limits: Limits
    gpus: GpuExpectation | None = None
    efa_devices: int = 0
    """EFA devices of the node; NCCL's log must show that it uses all of them."""
    rdma: bool = False
    """The pod asks for RDMA devices of its cluster: it must have a usable port of InfiniBand or RoCE."""
    adapters: int = 0
    """Active ports of InfiniBand or RoCE that each node must have; 0 for one of each adapter, and as many as most
    nodes."""
    one_leaf: bool = False
    """Each adapter of all nodes must be below one leaf of InfiniBand."""
    local_mb_s: float = 0.0
    """Floor for writes to and for reads from the local tier, 10^6 bytes/s."""
    shared_mb_s: float = 0.0
    """Floor for one node's writes to and reads from the shared tier while all nodes do so, 10^6 bytes/s."""
    throughput_mib: int = 0
    """Data to write and read for these figures, MiB; 0 to measure nothing."""
    gpudirect: bool = False
    """This type moves data directly between NIC and GPU memory; NCCL's log must show it."""
    versions: dict[str, str] = {}
    """Component of the node image (`driver`, `efa`: the kernel module) -> baked version, or `AT_LEAST` and the oldest
    that works. A prefix of whole parts is enough: `580` matches 580.159.03. Components of the container are compared
    with the container's own versions."""
    imports: tuple[str, ...] = ()
    """Modules that Python must import on the node."""
    dcgm_level: int | None = None
    """Run DCGM's diagnostic at this level (1: seconds, 2: two minutes, 3: half an hour, 4: two hours)."""
    shared_tier: str = ""
    """`s3://bucket/prefix` in place of a shared file system, which the node must write and read."""
    data_source: str = ""
    """`s3://bucket/prefix` with the data, which the node must read."""
    time_source: str | None = None
    """An HTTP endpoint of AWS with whose `Date` the node's clock is compared."""


SHARED_TIER_IN_S3, DATA_IN_S3 = "shared tier in S3", "data in S3"
"""Probes of what all nodes share where there is no shared file system."""


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    BLIND = "could not look"


class Probe(Frozen):
    name: str
    ok: bool
    seen: str
    wanted: str
    cure: str = ""
    """What to do, if that is not obvious."""
    looked: bool = True
    """False if the probe could not look: it does not judge the node."""
    figure: float | None = None
    """A measured value without a floor; the gang's nodes are compared by it."""
    blamed_nodes: tuple[str, ...] | None = None
    """Nodes at fault, if the probe judges what lies between the nodes; empty: none of them is. None: the probe judges
    the node that reports it."""

    @property
    def verdict(self) -> Verdict:
        if not self.looked:
            return Verdict.BLIND
        return Verdict.PASS if self.ok else Verdict.FAIL


class HealthReport(Frozen):
    """Termination message of a preflight pod."""

    node: str
    probes: tuple[Probe, ...]
    bus_bandwidth_gb_s: float | None = None
    hardware: tuple[str, ...] = ()
    """UUIDs of its GPUs, by which a host is known again under another instance ID; empty if nobody could look."""

    @property
    def fit(self) -> bool:
        return not any(probe.verdict is Verdict.FAIL for probe in self.probes)
