"""What was looked up before check and plan weigh it: plain data, so that both stay pure."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from pydantic import BaseModel, ConfigDict

from infra.plan.catalogue import InstanceType, Prices, Quota
from infra.spec.campaign import Capacity


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Offer(_Frozen):
    """One way to get the GPU nodes."""

    instance_type: str
    zone: str
    capacity: Capacity
    usd_per_hour: Decimal | None
    """Of one node; None where only a live look-up knows (capacity blocks are quoted per offering)."""
    quota_vcpus: int | None
    """vCPUs that the account's quota still leaves for this family; None: not looked up."""
    as_of: date
    source: str


class Zone(_Frozen):
    """An availability zone of the region, as this account has it."""

    name: str
    """The account's own: another account's `us-east-1a` is another zone."""
    id: str
    """The same in every account."""
    state: str = "available"


class Unsuitable(_Frozen):
    """What was looked up and will not do."""

    what: str
    seen: str
    cure: str


class QuotaRoom(_Frozen):
    """One quota of the account against what a campaign would make."""

    quota: Quota
    field: str
    """Of the spec: what decides how much is wanted."""
    allowed: int
    used: int
    wanted: int


class KubernetesSupport(_Frozen):
    """Until when EKS supports its versions."""

    as_of: date
    source: str
    standard_until: dict[str, date | None]
    """Version -> last day of standard support; None: not announced when the table was written."""


class DataSource(_Frozen):
    """What stands at `data.source`."""

    location: str
    """The folder that was looked at."""
    folder: bool
    matches: bool
    """At least one file fits the pattern."""
    tokens: int | None = None
    """To train on, as prepared on this machine, else estimated from the files' size; None: cannot be told."""
    prepared: bool = False


class Environment(_Frozen):
    """What holds where the nodes would come to life."""

    hardware: bool
    """A node is the instance type that the spec names."""
    claims: bool
    """Nodes publish devices that a pod can claim."""
    public_registries: bool
    """Nodes and builder would fetch images from registries outside AWS."""
    driver_outside: bool
    """The driver stands in another network than the cluster."""


class Facts(_Frozen):
    environment: Environment
    instance: InstanceType | None
    """The GPU nodes' type; None: the catalogue has none of this name."""
    all_reduce_gb_s: float | None = None
    """Measured bus bandwidth of all_reduce between two of them; None: no source states it."""
    floor_gb_s: float = 0.0
    """Bus bandwidth that preflight's profile asks for; 0: it has none, and the speed is only reported."""
    instance_names: tuple[str, ...]
    """Every type that the catalogue has."""
    profiles: tuple[str, ...]
    """Every preflight profile that the catalogue has."""
    regions: dict[str, str]
    """Every region of AWS -> its partition."""
    prices: Prices
    offers: tuple[Offer, ...]
    kubernetes: KubernetesSupport
    data: DataSource
    account: str | None = None
    """Account of the credentials at hand; None: not looked up."""
    zones: tuple[Zone, ...] | None = None
    """Of the region; None: not looked up."""
    sold: dict[str, tuple[str, ...]] | None = None
    """Instance type of the nodes -> zones of the region in which EC2 offers it; None: not looked up."""
    reservation: Unsuitable | None = None
    """Why the reservation that the spec names does not hold its nodes; None: it does, or was not looked up."""
    quotas: tuple[QuotaRoom, ...] = ()
    """Of what the campaign makes besides its GPU nodes; those that were looked up."""
    base: Unsuitable | None = None
    """Why the registry's base image will not do; None: it does, or was not looked up."""

    @property
    def offer(self) -> Offer | None:
        """The cheapest with a price, else any."""
        return min(self.offers, key=lambda o: (o.usd_per_hour is None, o.usd_per_hour or 0), default=None)
