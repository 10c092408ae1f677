"""EC2 capacity reservations and capacity blocks: bought, counted against launches, over at their end."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from infra.rehearsal.aws.operations import AwsError, Parameters, add_operations, matches, specified_tags, tag_list
from infra.rehearsal.aws.placement import template_data
from infra.rehearsal.aws.world import Launch, LaunchRefused, World

BLOCK_HOURLY_USD = {"p5.48xlarge": 31.464, "p5en.48xlarge": 36.184, "p4d.24xlarge": 11.80, "p6-b200.48xlarge": 68.8}
"""Made-up round figures near the public ones: a rehearsal needs a fee, not a quotation."""
OFFERINGS_PER_TYPE = 2
MAX_BLOCK = timedelta(days=182)


@dataclass
class Reservation:
    reservation_id: str
    instance_type: str
    platform: str
    zone: str
    count: int
    end_type: str
    end: datetime | None
    start: datetime
    match: str = "open"
    kind: str = "default"
    cancelled: bool = False
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    def state(self) -> str:
        now = datetime.now(UTC)
        if self.cancelled:
            return "cancelled"
        if self.end and self.end <= now:
            return "expired"
        return "active" if self.start <= now else "scheduled"


class Reservations:
    def __init__(self, world: World) -> None:
        self.world = world
        self.reservations: dict[str, Reservation] = {}
        self.offerings: dict[str, dict[str, Any]] = {}

    def users(self, reservation: Reservation) -> int:
        """Live instances whose launch template targets the reservation."""
        ec2 = self.world.backend("ec2")
        live = [one for one in ec2.all_instances() if one.state not in ("terminated", "shutting-down")]
        return sum(_target(template_data(ec2, one)) == reservation.reservation_id for one in live)

    def describe(self, reservation: Reservation) -> dict[str, Any]:
        world, state = self.world, reservation.state()
        free = reservation.count - self.users(reservation) if state == "active" else 0
        return {
            "CapacityReservationId": reservation.reservation_id,
            "OwnerId": world.account,
            "CapacityReservationArn": f"arn:aws:ec2:{world.region}:{world.account}:capacity-reservation/"
            f"{reservation.reservation_id}",
            "InstanceType": reservation.instance_type,
            "InstancePlatform": reservation.platform,
            "AvailabilityZone": reservation.zone,
            "Tenancy": "default",
            "TotalInstanceCount": reservation.count if state in ("active", "scheduled") else 0,
            "AvailableInstanceCount": free,
            "EbsOptimized": True,
            "EphemeralStorage": False,
            "State": state,
            "StartDate": reservation.start,
            "EndDate": reservation.end,
            "EndDateType": reservation.end_type,
            "InstanceMatchCriteria": reservation.match,
            "CreateDate": reservation.created,
            "ReservationType": reservation.kind,
            "Tags": tag_list(world.backend("ec2").tags.get(reservation.reservation_id, {})),
        }

    def create_capacity_reservation(self, params: Parameters) -> dict[str, Any]:
        end, end_type = _utc(params.get("EndDate")), params.get("EndDateType") or "unlimited"
        if (end_type == "limited") != (end is not None):
            raise AwsError("InvalidParameterCombination", "EndDate goes with EndDateType=limited and only with it")
        if not params.get("AvailabilityZone"):
            raise AwsError("MissingParameter", "AvailabilityZone is required (AvailabilityZoneId is not rehearsed)")
        reservation = Reservation(
            reservation_id=f"cr-{secrets.token_hex(9)[:17]}",
            instance_type=params["InstanceType"],
            platform=params["InstancePlatform"],
            zone=params["AvailabilityZone"],
            count=int(params["InstanceCount"]),
            end_type=end_type,
            end=end,
            start=datetime.now(UTC),
            match=params.get("InstanceMatchCriteria") or "open",
        )
        return {"CapacityReservation": self._keep(reservation, params)}

    def _keep(self, reservation: Reservation, params: Parameters) -> dict[str, Any]:
        self.reservations[reservation.reservation_id] = reservation
        self.world.backend("ec2").create_tags([reservation.reservation_id], specified_tags(params))
        return self.describe(reservation)

    def find(self, reservation_id: str) -> Reservation:
        try:
            return self.reservations[reservation_id]
        except KeyError:
            message = f"The capacity reservation '{reservation_id}' does not exist"
            raise AwsError("InvalidCapacityReservationId.NotFound", message) from None

    def describe_capacity_reservations(self, params: Parameters) -> dict[str, Any]:
        wanted = params.get("CapacityReservationIds") or list(self.reservations)
        found = []
        for reservation in [self.find(each) for each in wanted]:
            facts = {
                "instance-type": reservation.instance_type,
                "availability-zone": reservation.zone,
                "state": reservation.state(),
                "instance-platform": reservation.platform,
                "end-date-type": reservation.end_type,
                "instance-match-criteria": reservation.match,
                "tenancy": "default",
                "owner-id": self.world.account,
            }
            tags = dict(self.world.backend("ec2").tags.get(reservation.reservation_id, {}))
            if matches(params.get("Filters"), facts, tags):
                found.append(self.describe(reservation))
        return {"CapacityReservations": found}

    def modify_capacity_reservation(self, params: Parameters) -> dict[str, Any]:
        reservation = self.find(params["CapacityReservationId"])
        if reservation.kind == "capacity-block" or reservation.state() != "active":
            raise AwsError("InvalidState", f"{reservation.reservation_id} ({reservation.kind}) cannot be modified")
        reservation.count = int(params.get("InstanceCount") or reservation.count)
        if params.get("EndDateType") == "unlimited":
            reservation.end, reservation.end_type = None, "unlimited"
        elif params.get("EndDate"):
            reservation.end, reservation.end_type = _utc(params["EndDate"]), "limited"
        return {"Return": True}

    def cancel_capacity_reservation(self, params: Parameters) -> dict[str, Any]:
        reservation = self.find(params["CapacityReservationId"])
        if reservation.kind == "capacity-block":
            raise AwsError("UnsupportedOperation", "A capacity block cannot be cancelled")
        if reservation.state() not in ("active", "scheduled"):
            raise AwsError("InvalidState", f"{reservation.reservation_id} is {reservation.state()}")
        reservation.cancelled = True
        return {"Return": True}

    def describe_capacity_block_offerings(self, params: Parameters) -> dict[str, Any]:
        kind, count = params.get("InstanceType") or "", int(params.get("InstanceCount") or 1)
        hourly_usd = BLOCK_HOURLY_USD.get(kind)
        if hourly_usd is None:
            return {"CapacityBlockOfferings": []}
        hours = int(params["CapacityDurationHours"])
        if hours % 24 or not timedelta(hours=24) <= timedelta(hours=hours) <= MAX_BLOCK:
            raise AwsError("InvalidParameterValue", f"CapacityDurationHours {hours} is not a number of whole days")
        first = max(_utc(params.get("StartDateRange")) or datetime.now(UTC), datetime.now(UTC))
        found = []
        for number in range(OFFERINGS_PER_TYPE):
            start = first.replace(hour=11, minute=30, second=0, microsecond=0) + timedelta(days=number + 1)
            offering = {
                "CapacityBlockOfferingId": f"cbr-{secrets.token_hex(9)[:17]}",
                "InstanceType": kind,
                "AvailabilityZone": f"{self.world.region}{'ab'[number % 2]}",
                "InstanceCount": count,
                "StartDate": start,
                "EndDate": start + timedelta(hours=hours),
                "CapacityBlockDurationHours": hours,
                "UpfrontFee": str(math.ceil(hourly_usd * hours * count * 100) / 100),
                "CurrencyCode": "USD",
                "Tenancy": "default",
            }
            latest = _utc(params.get("EndDateRange"))
            if latest is None or start + timedelta(hours=hours) <= latest:
                self.offerings[str(offering["CapacityBlockOfferingId"])] = offering
                found.append(offering)
        return {"CapacityBlockOfferings": found}

    def purchase_capacity_block(self, params: Parameters) -> dict[str, Any]:
        offering = self.offerings.pop(params["CapacityBlockOfferingId"], None)
        if offering is None:
            raise AwsError("InvalidCapacityBlockOfferingId.NotFound", f"no {params['CapacityBlockOfferingId']}")
        reservation = Reservation(
            reservation_id=f"cr-{secrets.token_hex(9)[:17]}",
            instance_type=offering["InstanceType"],
            platform=params["InstancePlatform"],
            zone=offering["AvailabilityZone"],
            count=offering["InstanceCount"],
            end_type="limited",
            end=offering["EndDate"],
            start=offering["StartDate"],
            match="targeted",
            kind="capacity-block",
        )
        return {"CapacityReservation": self._keep(reservation, params)}

    def check(self, launch: Launch) -> None:
        """A launch that targets a reservation needs one that is active, fits, and has a place left."""
        if not launch.capacity_reservation_id:
            return
        reservation = self.reservations.get(launch.capacity_reservation_id)
        if reservation is None:
            message = f"The capacity reservation '{launch.capacity_reservation_id}' does not exist"
            raise LaunchRefused("InvalidCapacityReservationId.NotFound", message)
        asked = (launch.instance_type, launch.zone)
        if asked != (reservation.instance_type, reservation.zone):
            message = f"{reservation.reservation_id} is for {reservation.instance_type} in {reservation.zone}: {asked}"
            raise LaunchRefused("InvalidParameterValue", message)
        if (launch.market == "capacity-block") != (reservation.kind == "capacity-block"):
            message = f"MarketType {launch.market} does not go with a reservation of type {reservation.kind}"
            raise LaunchRefused("InvalidParameterCombination", message)
        if reservation.state() != "active" or self.users(reservation) >= reservation.count:
            message = f"The capacity reservation {reservation.reservation_id} has insufficient available capacity"
            raise LaunchRefused("ReservationCapacityExceeded", message)


def _target(data: dict[str, Any]) -> str | None:
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    return target.get("CapacityReservationId")


def _utc(moment: datetime | None) -> datetime | None:
    """moto's parser gives naive UTC."""
    return moment.replace(tzinfo=UTC) if moment else None


def install(world: World) -> None:
    EC2_RESOURCE_TO_PREFIX["capacity-reservation"], EC2_PREFIX_TO_RESOURCE["cr"] = "cr", "capacity-reservation"
    reservations = Reservations(world)
    names = (
        "create_capacity_reservation",
        "describe_capacity_reservations",
        "modify_capacity_reservation",
        "cancel_capacity_reservation",
        "describe_capacity_block_offerings",
        "purchase_capacity_block",
    )
    add_operations(world, EC2Response, {name: getattr(reservations, name) for name in names})
    world.launch_hooks.append(reservations.check)
