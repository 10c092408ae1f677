"""The market for a campaign's GPU nodes: types, zones, purchase options, prices, times and quotas. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account
from infra.aws.blocks import LOST, block_of
from infra.aws.price_list import on_demand_prices
from infra.aws.quota_use import QuotaUse, quota_use
from infra.aws.zones import zones_of, zones_selling
from infra.errors import UserError
from infra.plan import catalogue
from infra.plan.catalogue import InstanceType
from infra.plan.estimates.figure import cents
from infra.plan.purchase import SCALE_DOWN, quota_holds
from infra.plan.zones import control_plane_zones
from infra.spec.campaign import Capacity, Spec
from trainer.contract.frozen import Frozen

_DAY, _WEEK, _LONGEST_BY_DAY = 24, 168, 14 * 24
_SOON = timedelta(days=56)
"""Blocks are sold up to eight weeks ahead."""


class Choice(Frozen):
    """One way to buy all nodes of the spec."""

    instance_type: str
    zone: str
    capacity: Capacity
    usd_per_hour: Decimal | None
    """Price of one node."""
    usd: Decimal | None
    """Price of all nodes: a block's whole fee, else for the planned hours."""
    starts: datetime | None = None
    ends: datetime | None = None
    id: str | None = None
    """Id of a block's offering, or of a reservation in the account."""
    places: int | None = None
    """Free places of a reservation in the account."""
    quota: QuotaUse | None = None
    fits: bool | None
    """True if quota or reservation has room for all nodes; None: unknown."""
    note: str = ""


class Market(Frozen):
    count: int
    hours: float
    """Planned hours of the nodes."""
    block_hours: int
    """Shortest block that covers them."""
    choices: tuple[Choice, ...]
    unanswered: tuple[str, ...]
    """AWS's messages for refused requests."""


def block_hours(planned: timedelta) -> int:
    """Return the shortest duration that AWS sells for `planned` plus EKS's scaling down before the end."""
    needed = (planned + SCALE_DOWN).total_seconds() / 3600
    days = int(-(-needed // _DAY)) * _DAY
    return max(days, _DAY) if days <= _LONGEST_BY_DAY else int(-(-needed // _WEEK)) * _WEEK


def alternatives(item: InstanceType) -> tuple[str, ...]:
    """Return types of the same maker with at least as many accelerators and as much memory on each."""
    return tuple(
        other.name
        for other in catalogue.instance_types()
        if other.name != item.name
        and other.maker == item.maker
        and other.accelerators >= item.accelerators
        and other.accelerator_memory_gib >= item.accelerator_memory_gib
    )


def look(account: Account, spec: Spec, types: Sequence[str], planned: timedelta, say: Callable[[str], None]) -> Market:
    """Return every choice for these types in the spec's region; a refused request is noted, not raised."""
    asker = _Asker(account, spec, planned, say)
    choices = [asker.placed(choice) for name in types for choice in asker.choices(catalogue.instance_type(name))]
    return Market(
        count=spec.nodes.count,
        hours=round(planned.total_seconds() / 3600, 2),
        block_hours=asker.block_hours,
        choices=tuple(choices),
        unanswered=tuple(dict.fromkeys(asker.unanswered)),
    )


class _Asker:
    def __init__(self, account: Account, spec: Spec, planned: timedelta, say: Callable[[str], None]) -> None:
        self.account, self.spec, self.say = account, spec, say
        self.hours = Decimal(repr(planned.total_seconds())) / 3600
        self.block_hours = block_hours(planned)
        self.unanswered = list[str]()
        self.regional = self._asked(lambda: zones_of(account), None)

    def placed(self, choice: Choice) -> Choice:
        """Return the choice with a note if its zone has no control plane; it does not fit if the region lacks two."""
        if self.regional is None:
            return choice
        try:
            zones = control_plane_zones(self.spec.model_copy(update={"zone": choice.zone}), self.regional)
        except UserError as error:
            return choice.model_copy(update={"fits": False, "note": f"{error.what}: {error.seen}"})
        if choice.zone in zones:
            return choice
        note = f"control plane in {' and '.join(zones)}: EKS places none in {choice.zone}"
        return choice.model_copy(update={"note": f"{choice.note}; {note}" if choice.note else note})

    def choices(self, item: InstanceType) -> Iterator[Choice]:
        self.say(f"{item.name}: zones, prices, quotas")
        zones = self._asked(lambda: zones_selling(self.account, item.name), ())
        price = self._asked(lambda: dict(on_demand_prices(self.account, [item.name], self.account.region)), {})
        quota = self._asked(lambda: quota_use(self.account, item, spot=False), None)
        for zone in zones:
            yield self._hourly(item, zone, Capacity.ON_DEMAND, price.get(item.name), quota)
        spot_quota = self._asked(lambda: quota_use(self.account, item, spot=True), None)
        for zone, usd in self._asked(lambda: self._spot(item), {}).items():
            yield self._hourly(item, zone, Capacity.SPOT, usd, spot_quota)
        yield from self._asked(lambda: list(self._held(item, price.get(item.name))), [])
        if item.capacity_block:
            self.say(f"{item.name}: capacity blocks of {self.block_hours} h")
            yield from self._asked(lambda: [self._block(one) for one in self.offerings(item.name)], [])

    def _asked(self, question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return question()
        except ClientError as error:
            refusal = error.response["Error"]
            self.unanswered.append(f"{error.operation_name}: {refusal['Code']}: {refusal.get('Message', '')}")
            return otherwise

    def _spot(self, item: InstanceType) -> dict[str, Decimal]:
        """Return zone -> newest price."""
        now = datetime.now(UTC)
        pages = self.account.client("ec2").get_paginator("describe_spot_price_history")
        found = pages.paginate(
            InstanceTypes=[item.name],
            ProductDescriptions=["Linux/UNIX"],
            StartTime=now - timedelta(hours=1),
            EndTime=now,
        )
        rows = sorted((one for page in found for one in page["SpotPriceHistory"]), key=lambda one: one["Timestamp"])
        return {one["AvailabilityZone"]: Decimal(one["SpotPrice"]) for one in rows}

    def _hourly(
        self, item: InstanceType, zone: str, how: Capacity, usd: Decimal | None, quota: QuotaUse | None
    ) -> Choice:
        wanted = self.spec.nodes.count * item.vcpus
        fits = None if quota is None else quota_holds(self.spec.nodes.count, item, quota.free)
        note = f"{wanted} vCPUs wanted" if fits is False else ""
        return Choice(
            instance_type=item.name,
            zone=zone,
            capacity=how,
            usd_per_hour=usd,
            usd=None if usd is None else cents(usd * self.spec.nodes.count * self.hours),
            quota=quota,
            fits=fits,
            note=note or (item.why_absent("spot_quota_family") if how is Capacity.SPOT and quota is None else ""),
        )

    def _held(self, item: InstanceType, usd: Decimal | None) -> Iterator[Choice]:
        """Yield reservations and blocks of the account; both are paid, used or not."""
        wanted = [{"Name": "instance-type", "Values": [item.name]}]
        pages = self.account.client("ec2").get_paginator("describe_capacity_reservations").paginate(Filters=wanted)
        for one in (one for page in pages for one in page["CapacityReservations"]):
            block = block_of(one)
            if block.state in LOST:
                continue
            free = one["AvailableInstanceCount"] if block.state == "active" else None
            yield Choice(
                instance_type=item.name,
                zone=block.zone,
                capacity=Capacity.CAPACITY_BLOCK if block.kind == "capacity-block" else Capacity.RESERVATION,
                usd_per_hour=None if block.kind == "capacity-block" else usd,
                usd=None,
                starts=block.starts,
                ends=block.ends,
                id=block.reservation_id,
                places=free,
                fits=None if free is None else free >= self.spec.nodes.count,
                note=f"held, {block.state}",
            )

    def offerings(self, instance_type: str) -> list[dict[str, Any]]:
        """Return offerings of blocks that hold all nodes long enough, soonest first."""
        now = datetime.now(UTC)
        pages = self.account.client("ec2").get_paginator("describe_capacity_block_offerings")
        found = pages.paginate(
            InstanceType=instance_type,
            InstanceCount=self.spec.nodes.count,
            CapacityDurationHours=self.block_hours,
            StartDateRange=now,
            EndDateRange=now + _SOON + timedelta(hours=self.block_hours),
        )
        return sorted(
            (one for page in found for one in page["CapacityBlockOfferings"]), key=lambda one: one["StartDate"]
        )

    def _block(self, one: dict[str, Any]) -> Choice:
        fee, hours = Decimal(one["UpfrontFee"]), Decimal(one["CapacityBlockDurationHours"])
        return Choice(
            instance_type=one["InstanceType"],
            zone=one["AvailabilityZone"],
            capacity=Capacity.CAPACITY_BLOCK,
            usd_per_hour=(fee / hours / one["InstanceCount"]).quantize(Decimal("0.0001")),
            usd=fee,
            starts=one["StartDate"],
            ends=one["EndDate"],
            id=one["CapacityBlockOfferingId"],
            fits=one["InstanceCount"] >= self.spec.nodes.count,
            note="" if one.get("CurrencyCode", "USD") == "USD" else f"in {one['CurrencyCode']}",
        )


def block_offerings(account: Account, spec: Spec, planned: timedelta) -> list[dict[str, Any]]:
    return _Asker(account, spec, planned, lambda text: None).offerings(spec.nodes.instance_type)
