"""What a node must prove before training, and the form of its answer."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


DCGM_LONGEST_S = {1: 180.0, 2: 600.0, 3: 3600.0, 4: 9000.0}
"""How long a level of DCGM's diagnostic may take; NVIDIA's own figures are seconds, 2 min, 30 min, 1 to 2 h."""


class GpuExpectation(_Frozen):
    """What the GPUs of a node must be, and how they must be connected."""

    product: str
    """A word of the product's name, `H100`."""
    count: int
    memory_gib: float
    """Of one GPU, at least so much."""
    nvlinks: int
    """Active links of each GPU; 0 where the type has none, or no source states how many."""
    nvswitch: bool
    """Whether the GPUs meet in a switch, as far as is known: what their driver tells of a fabric must be finished."""


class Expectation(_Frozen):
    """What preflight holds a node against; written from the instance profile to `/config/expectation.json`.

    A floor of 0 asks for the figure only: it is measured and reported, and nothing fails by it.
    """

    profile: str
    cpus: int
    memory_gib: float
    accelerators: int
    """CUDA devices that torch must see; 0 on a CPU profile. As many processes of a node join the collective."""
    local_disk_gib: float
    """Free space wanted on the local tier."""
    shared_disk_gib: float
    mounts: tuple[str, ...]
    clock_skew_s: float
    """Largest skew against the median of the gang's clocks, and against the time that AWS tells."""
    all_reduce_mib: int
    bus_bandwidth_gb_s: float
    """Floor for the all-reduce over all nodes, GB/s."""
    gpus: GpuExpectation | None = None
    efa_devices: int = 0
    """EFA devices of the node; where there are some, NCCL's log must show that it uses all of them."""
    local_mb_s: float = 0.0
    """Floor for writing to and for reading from the local tier, 10^6 bytes/s."""
    shared_mb_s: float = 0.0
    """Floor for one node's writing to and reading from the shared tier while all nodes do, 10^6 bytes/s."""
    throughput_mib: int = 0
    """Bytes to write and read for these figures, MiB; 0 measures nothing."""
    gpudirect: bool = False
    """Data moves between NIC and GPU memory directly on this type, and NCCL's log must show it."""
    versions: dict[str, str] = {}
    """Component of the node image (`driver`, `efa`: the kernel's module) -> the version that was baked; a prefix of
    whole parts is enough, `580` fits 580.159.03. What the container brings is held against the container's own word."""
    dcgm_level: int | None = None
    """Run DCGM's diagnostic at this level (1: seconds, 2: two minutes, 3: half an hour, 4: two hours)."""
    time_source: str | None = None
    """An HTTP endpoint of AWS whose `Date` the node's clock is held against."""


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    BLIND = "could not look"


class Probe(_Frozen):
    name: str
    ok: bool
    seen: str
    wanted: str
    cure: str = ""
    """What to do about it, where that is not plain."""
    looked: bool = True
    """False: the probe could not look; it says nothing about the node."""
    figure: float | None = None
    """What was measured where no floor judges it: the gang's nodes are held against each other by it."""

    @property
    def verdict(self) -> Verdict:
        if not self.looked:
            return Verdict.BLIND
        return Verdict.PASS if self.ok else Verdict.FAIL


class HealthReport(_Frozen):
    """Termination message of a preflight pod."""

    node: str
    probes: tuple[Probe, ...]
    bus_bandwidth_gb_s: float | None = None

    @property
    def fit(self) -> bool:
        return not any(probe.verdict is Verdict.FAIL for probe in self.probes)
