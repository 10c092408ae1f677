"""Instance types: what a node of each offers, and what it costs. What no source states is absent, with a reason."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from infra.plan.catalogue.reading import read, unknown

FILE = "instance_types"
USABLE = 0.9
"""Share of a nominal size, of memory, GPU memory or disk, that a sound node shows: kernel, driver, ECC and file system
keep the rest."""


class Origin(BaseModel):
    """Where figures come from, and when they were read there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    as_of: date
    source: str
    region: str | None = None
    """Of prices: whose they are."""


class InstanceType(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    accelerator: str
    maker: Literal["nvidia", "neuron"]
    """Decides node image and device plugin."""
    accelerators: int = Field(ge=1)
    accelerator_memory_gib: float
    """Of one accelerator."""
    peak_bf16_tflops: float | None = None
    """Dense, of one accelerator."""
    nvlinks: int | None = Field(default=None, ge=0)
    """Of one accelerator; 0 where there are none."""
    vcpus: int
    memory_gib: int
    nvme_count: int
    nvme_gb: int
    """Of one disk, in 10^9 bytes."""
    network_cards: int
    interfaces_per_card: int
    efa_interfaces: int
    """Most EFA devices of one instance (`EfaInfo.MaximumEfaInterfaces`)."""
    efa_on_first_card: bool
    """False where card 0 carries plain ENA only."""
    price_usd_per_hour: Decimal | None = None
    """Linux on demand, in the region of the price list."""
    capacity_block: bool
    quota_family: str
    """Family of the EC2 vCPU quota on demand: a key of quotas.yaml."""
    spot_quota_family: str | None = None
    """The same for spot, where the families are others."""
    absent: dict[str, str] = {}
    """Field -> why it has no figure. Every field without one is named here."""
    kept: dict[str, str] = {}
    """Field -> why a refresh leaves it as it is, though the API shows another figure."""
    hardware: Origin
    price: Origin
    performance: Origin
    """Of FLOP/s and NVLinks."""

    @model_validator(mode="after")
    def _nothing_is_missing_without_a_reason(self) -> InstanceType:
        optional = {"peak_bf16_tflops", "nvlinks", "price_usd_per_hour", "spot_quota_family"}
        missing = {name for name in optional if getattr(self, name) is None}
        if missing != set(self.absent):
            raise ValueError(f"{self.name}: without a figure {sorted(missing)}, with a reason {sorted(self.absent)}")
        if strange := set(self.kept) - set(type(self).model_fields):
            raise ValueError(f"{self.name}: `kept` names no field: {sorted(strange)}")
        return self

    @property
    def nvme_total_gib(self) -> float:
        return self.nvme_count * self.nvme_gb * 1e9 / 2**30

    def why_absent(self, field: str) -> str:
        """Why this field has no figure."""
        return self.absent.get(field, "not looked up")


@cache
def _table() -> dict[str, InstanceType]:
    content = read(FILE)
    origins = {name: content[name] for name in ("hardware", "price", "performance")}
    return {
        name: InstanceType.model_validate({"name": name, **origins, **row}) for name, row in content["types"].items()
    }


def instance_types() -> tuple[InstanceType, ...]:
    """All types of the catalogue, in the file's order."""
    return tuple(_table().values())


def instance_type(name: str) -> InstanceType:
    """The type of this name; raises `UserError` with the nearest names."""
    try:
        return _table()[name]
    except KeyError:
        raise unknown("instance type", name, _table()) from None
