"""The market for a campaign's GPU nodes: types, zones, purchase options, prices, times and quotas. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every
from infra.aws.blocks import LOST, block_of
from infra.aws.price_list import on_demand_prices
from infra.aws.quota_room import QuotaUse, quota_use
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


def block_hours(planned_time: timedelta) -> int:
    """Return the shortest duration that AWS sells for `planned_time` plus EKS's scaling down before the end."""
    hours = (planned_time + SCALE_DOWN).total_seconds() / 3600
    days = int(-(-hours // _DAY)) * _DAY
    return max(days, _DAY) if days <= _LONGEST_BY_DAY else int(-(-hours // _WEEK)) * _WEEK


def alternatives(item: InstanceType) -> tuple[str, ...]:
    """Return types of the same maker with at least as many accelerators and as much memory on each."""
    return tuple(
        other_type.name
        for other_type in catalogue.instance_types()
        if other_type.name != item.name
        and other_type.maker == item.maker
        and other_type.accelerators >= item.accelerators
        and other_type.accelerator_memory_gib >= item.accelerator_memory_gib
    )


def look(
    account: Account, spec: Spec, types: Sequence[str], planned_time: timedelta, say: Callable[[str], None]
) -> Market:
    """Return every choice for these types in the spec's region; a refused request is noted, not raised."""
    asker = _Asker(account, spec, planned_time, say)
    choices = [
        asker.with_zone_note(choice) for name in types for choice in asker.choices(catalogue.instance_type(name))
    ]
    return Market(
        count=spec.nodes.count,
        hours=round(planned_time.total_seconds() / 3600, 2),
        block_hours=asker.block_hours,
        choices=tuple(choices),
        unanswered=tuple(dict.fromkeys(asker.unanswered)),
    )


class _Asker:
    def __init__(self, account: Account, spec: Spec, planned_time: timedelta, say: Callable[[str], None]) -> None:
        self.account, self.spec, self.say, self._ec2 = account, spec, say, account.client("ec2")
        self.hours = Decimal(repr(planned_time.total_seconds())) / 3600
        self.block_hours = block_hours(planned_time)
        self.unanswered = list[str]()
        self.regional = self._try(lambda: zones_of(account), None)

    def with_zone_note(self, choice: Choice) -> Choice:
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
        zones = self._try(lambda: zones_selling(self.account, item.name), ())
        price = self._try(lambda: dict(on_demand_prices(self.account, [item.name], self.account.region)), {})
        quota = self._try(lambda: quota_use(self.account, item, spot=False), None)
        for zone in zones:
            yield self._hourly(item, zone, Capacity.ON_DEMAND, price.get(item.name), quota)
        spot_quota = self._try(lambda: quota_use(self.account, item, spot=True), None)
        for zone, usd in self._try(lambda: self._spot(item), {}).items():
            yield self._hourly(item, zone, Capacity.SPOT, usd, spot_quota)
        yield from self._try(lambda: list(self._account_reservations(item, price.get(item.name))), [])
        if item.capacity_block:
            self.say(f"{item.name}: capacity blocks of {self.block_hours} h")
            yield from self._try(lambda: [self._block(offering) for offering in self.offerings(item.name)], [])

    def _try(self, question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return question()
        except ClientError as error:
            refusal = error.response["Error"]
            self.unanswered.append(f"{error.operation_name}: {refusal['Code']}: {refusal.get('Message', '')}")
            return otherwise

    def _spot(self, item: InstanceType) -> dict[str, Decimal]:
        """Return zone -> newest price."""
        now = datetime.now(UTC)
        request = {"InstanceTypes": [item.name], "ProductDescriptions": ["Linux/UNIX"]}
        period = {"StartTime": now - timedelta(hours=1), "EndTime": now}
        history = every(self._ec2, "describe_spot_price_history", "SpotPriceHistory", **request, **period)
        rows = sorted(history, key=lambda price: price["Timestamp"])
        return {price["AvailabilityZone"]: Decimal(price["SpotPrice"]) for price in rows}

    def _hourly(
        self, item: InstanceType, zone: str, capacity: Capacity, usd: Decimal | None, quota: QuotaUse | None
    ) -> Choice:
        vcpus = self.spec.nodes.count * item.vcpus
        fits = None if quota is None else quota_holds(self.spec.nodes.count, item, quota.free)
        note = f"{vcpus} vCPUs wanted" if fits is False else ""
        return Choice(
            instance_type=item.name,
            zone=zone,
            capacity=capacity,
            usd_per_hour=usd,
            usd=None if usd is None else cents(usd * self.spec.nodes.count * self.hours),
            quota=quota,
            fits=fits,
            note=note or (item.why_absent("spot_quota_family") if capacity is Capacity.SPOT and quota is None else ""),
        )

    def _account_reservations(self, item: InstanceType, usd: Decimal | None) -> Iterator[Choice]:
        """Yield reservations and blocks of the account; both are paid, used or not."""
        filters = [{"Name": "instance-type", "Values": [item.name]}]
        for reservation in every(self._ec2, "describe_capacity_reservations", "CapacityReservations", Filters=filters):
            block = block_of(reservation)
            if block.state in LOST:
                continue
            free = reservation["AvailableInstanceCount"] if block.state == "active" else None
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
        offerings = every(
            self._ec2,
            "describe_capacity_block_offerings",
            "CapacityBlockOfferings",
            InstanceType=instance_type,
            InstanceCount=self.spec.nodes.count,
            CapacityDurationHours=self.block_hours,
            StartDateRange=now,
            EndDateRange=now + _SOON + timedelta(hours=self.block_hours),
        )
        return sorted(offerings, key=lambda offering: offering["StartDate"])

    def _block(self, offering: dict[str, Any]) -> Choice:
        fee, hours = Decimal(offering["UpfrontFee"]), Decimal(offering["CapacityBlockDurationHours"])
        return Choice(
            instance_type=offering["InstanceType"],
            zone=offering["AvailabilityZone"],
            capacity=Capacity.CAPACITY_BLOCK,
            usd_per_hour=(fee / hours / offering["InstanceCount"]).quantize(Decimal("0.0001")),
            usd=fee,
            starts=offering["StartDate"],
            ends=offering["EndDate"],
            id=offering["CapacityBlockOfferingId"],
            fits=offering["InstanceCount"] >= self.spec.nodes.count,
            note="" if offering.get("CurrencyCode", "USD") == "USD" else f"in {offering['CurrencyCode']}",
        )


def block_offerings(account: Account, spec: Spec, planned_time: timedelta) -> list[dict[str, Any]]:
    return _Asker(account, spec, planned_time, lambda text: None).offerings(spec.nodes.instance_type)
