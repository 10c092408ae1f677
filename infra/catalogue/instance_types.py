"""Instance types: what a node of each offers, and what it costs."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.catalogue.reading import read, unknown


class InstanceType(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    accelerator: str
    maker: Literal["nvidia", "neuron"]
    """Decides node image and device plugin."""
    accelerators: int = Field(ge=1)
    accelerator_memory_gib: float
    """Of one accelerator."""
    peak_bf16_tflops: float | None
    """Dense, of one accelerator; None where no source gave it."""
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
    price_usd_per_hour: Decimal | None
    """Linux on demand, us-east-1; None: sold by capacity block only, at the price of its offering."""
    capacity_block: bool
    quota_family: str
    """Family of the EC2 vCPU quota."""
    as_of: date
    source: str

    @property
    def nvme_total_gib(self) -> float:
        return self.nvme_count * self.nvme_gb * 1e9 / 2**30


@cache
def _table() -> dict[str, InstanceType]:
    content = read("instance_types")
    dated = {"as_of": content["as_of"], "source": content["source"]}
    return {name: InstanceType(name=name, **row, **dated) for name, row in content["types"].items()}


def instance_types() -> tuple[InstanceType, ...]:
    """All types of the catalogue, in the file's order."""
    return tuple(_table().values())


def instance_type(name: str) -> InstanceType:
    """The type of this name; raises `UserError` with the nearest names."""
    try:
        return _table()[name]
    except KeyError:
        raise unknown("instance type", name, _table()) from None
