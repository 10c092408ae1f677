"""What a node must prove before training, and the form of its answer."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Expectation(_Frozen):
    """What preflight holds a node against; written from the instance profile to `/config/expectation.json`."""

    profile: str
    cpus: int
    memory_gib: float
    accelerators: int
    """CUDA devices that torch must see; 0 on a CPU profile."""
    local_disk_gib: float
    """Free space wanted on the local tier."""
    shared_disk_gib: float
    mounts: tuple[str, ...]
    clock_skew_s: float
    """Largest skew against pod 0's clock."""
    all_reduce_mib: int
    bus_bandwidth_gb_s: float
    """Floor for the all-reduce over all nodes."""


class Probe(_Frozen):
    name: str
    ok: bool
    seen: str
    wanted: str


class HealthReport(_Frozen):
    """Termination message of a preflight pod."""

    node: str
    probes: tuple[Probe, ...]
    bus_bandwidth_gb_s: float | None = None

    @property
    def fit(self) -> bool:
        return all(probe.ok for probe in self.probes)
