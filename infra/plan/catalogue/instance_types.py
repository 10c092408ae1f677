"""Hardware and price of each instance type. A figure that no source states is absent, with a reason."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from functools import cache
from typing import Literal

from pydantic import Field, model_validator

from infra.plan.catalogue.reading import read, unknown
from trainer.contract.frozen import Frozen

FILE = "instance_types"


class FigureOrigin(Frozen):
    """Source of figures, and the day on which they were read."""

    as_of: date
    source: str
    region: str | None = None
    """Region of the prices."""


class InstanceType(Frozen):
    name: str
    accelerator: str
    maker: Literal["nvidia", "neuron"]
    """Determines node image and device plugin."""
    accelerators: int = Field(ge=1)
    accelerator_memory_gib: float
    """Memory of one accelerator."""
    peak_bf16_tflops: float | None = None
    """Dense FLOP/s of one accelerator."""
    nvlinks: int | None = Field(default=None, ge=0)
    """Links of one accelerator; 0 if there are none."""
    vcpus: int
    memory_gib: int
    nvme_count: int
    nvme_gb: int
    """Size of one disk, in 10^9 bytes."""
    network_gbit_s: int
    """Nominal speed of all cards together."""
    network_cards: int
    interfaces_per_card: int
    efa_interfaces: int
    """Most EFA devices of one instance (`EfaInfo.MaximumEfaInterfaces`)."""
    efa_on_first_card: bool
    """False if card 0 carries only plain ENA."""
    price_usd_per_hour: Decimal | None = None
    """Linux on-demand price in the region of the price list."""
    capacity_block: bool
    quota_family: str
    """Family of the on-demand vCPU quota of EC2: a key of quotas.yaml."""
    spot_quota_family: str | None = None
    """Family of the spot quota, if its families differ."""
    absent: dict[str, str] = {}
    """Field -> reason why it has no figure; every field without a figure is listed."""
    kept: dict[str, str] = {}
    """Field -> reason why a refresh keeps it although the API has another figure."""
    hardware: FigureOrigin
    price: FigureOrigin
    performance: FigureOrigin
    """Origin of FLOP/s and NVLinks."""

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
        return self.absent.get(field, "not looked up")


@cache
def _table() -> dict[str, InstanceType]:
    content = read(FILE)
    origins = {name: content[name] for name in ("hardware", "price", "performance")}
    return {
        name: InstanceType.model_validate({"name": name, **origins, **row}) for name, row in content["types"].items()
    }


def instance_types() -> tuple[InstanceType, ...]:
    return tuple(_table().values())


def instance_type(name: str) -> InstanceType:
    """Return the type of this name; raise `UserError` with the nearest names."""
    try:
        return _table()[name]
    except KeyError:
        raise unknown("instance type", name, _table()) from None
