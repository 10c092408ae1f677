"""EC2 capacity reservations and capacity blocks: purchase, use by launches, end."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX
from pydantic import ValidationError

from infra.rehearsal.aws.ec2.block_offers import Blocks, Bought, offerings, utc
from infra.rehearsal.aws.ec2.placement import template_data
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend, matches, specified_tags, tag_list
from infra.rehearsal.aws.world import InstanceLaunch, LaunchRefused, World

PAYMENT = timedelta(seconds=1)
"""Time until a purchase is paid; on AWS up to 12 hours."""
ENDING = timedelta(minutes=30)
"""EC2 terminates a block's instances this long before its end."""
BLOCK = timedelta(hours=24)
"""Shortest block that AWS sells."""
PERIOD_S = 0.5


@dataclass
class PlaceReservation:
    reservation_id: str
    instance_type: str
    platform: str
    zone: str
    count: int
    end_type: str
    end: datetime | None
    start: datetime
    match: str = "open"
    ebs_optimized: bool = False
    kind: str = "default"
    cancelled: bool = False
    paid: bool = True
    late: timedelta = timedelta(0)
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    def state(self) -> str:
        now = datetime.now(UTC)
        if self.cancelled:
            return "cancelled"
        if self.kind == "capacity-block" and now < self.created + PAYMENT:
            return "payment-pending"
        if not self.paid:
            return "payment-failed"
        if self.end and self.end <= now:
            return "expired"
        return "active" if self.start + self.late <= now else "scheduled"


class Reservations:
    def __init__(self, world: World) -> None:
        self.world = world
        self.reservations: dict[str, PlaceReservation] = {}
        self.offerings: dict[str, dict[str, Any]] = {}
        self.blocks = Blocks()

    def route(self, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        request = json.loads(body) if body else {}
        try:
            now = {"asked_at": datetime.now(UTC)} if "start_in_s" in request else {}
            self.blocks = Blocks.model_validate(self.blocks.model_dump() | request | now)
        except ValidationError as error:
            return 400, {"message": str(error)}
        for block in (block for block in self.reservations.values() if block.kind == "capacity-block"):
            block.late, block.paid = timedelta(seconds=self.blocks.late_s), self.blocks.payment == "succeeds"
            if self.blocks.end_in_s is not None and "end_in_s" in request:
                block.end = datetime.now(UTC) + timedelta(seconds=self.blocks.end_in_s)
        return 200, self.blocks.model_dump(mode="json")

    def hold(self, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Hold what somebody has bought before a campaign: paid, active and free. One that is there stays as it is, a
        cancelled one too; it only gets the places it lacks, and a block that is nearly over and free begins anew."""
        try:
            purchase = Bought.model_validate_json(body)
        except ValidationError as error:
            return 400, {"message": str(error)}
        now, block_id = datetime.now(UTC), purchase.reservation_id
        with self.world.lock:
            previous = self.reservations.get(block_id)
            nearly_ended = previous is not None and previous.end is not None and previous.end - now < BLOCK / 2
            if previous is None or (nearly_ended and not self.users(previous)):
                block = purchase.kind == "capacity-block"
                previous = self.reservations[block_id] = PlaceReservation(
                    reservation_id=block_id,
                    instance_type=purchase.instance_type,
                    platform="Linux/UNIX",
                    zone=purchase.zone,
                    count=purchase.count,
                    end_type="limited" if block else "unlimited",
                    end=now + BLOCK if block else None,
                    start=now,
                    match="open" if purchase.name == "open" else "targeted",
                    kind=purchase.kind,
                    created=now - PAYMENT,
                )
            previous.count = max(previous.count, purchase.count)
            if purchase.name.startswith("arn:"):
                self.blocks = self.blocks.model_copy(
                    update={"groups": {**self.blocks.groups, purchase.name: (block_id,)}}
                )
        return 200, {"reservation_id": block_id}

    def users(self, reservation: PlaceReservation) -> int:
        """Return the number of live instances in the reservation. Those that target a group or any open reservation
        fill the oldest first; beyond its capacity they run on demand."""
        ec2 = self.world.backend("ec2")
        live = [instance for instance in ec2.all_instances() if instance.state not in ("terminated", "shutting-down")]
        launches = [
            (template_data(ec2, instance), instance.instance_type, instance.placement.zone) for instance in live
        ]
        counts = Counter(target for data, _, _ in launches if (target := _target(data)))
        for pool in (self._pool(*instance) for instance in launches):
            if place := next(
                (instance for instance in pool if counts[instance] < self.reservations[instance].count), None
            ):
                counts[place] += 1
        return counts[reservation.reservation_id]

    def in_block(self, reservation: PlaceReservation) -> list[str]:
        """Return the live instances that target this reservation by ID."""
        ec2 = self.world.backend("ec2")
        live = [instance for instance in ec2.all_instances() if instance.state in ("pending", "running")]
        return [instance.id for instance in live if _target(template_data(ec2, instance)) == reservation.reservation_id]

    def _pool(self, data: dict[str, Any], instance_type: str, zone: str) -> tuple[str, ...]:
        """Return the reservations that a launch with this template may use; none if it names one."""
        specification = data.get("CapacityReservationSpecification") or {}
        if _target(data):
            return ()
        group = (specification.get("CapacityReservationTarget") or {}).get("CapacityReservationResourceGroupArn")
        if group:
            return self._fitting(instance_type, zone, self.blocks.groups.get(group, ()))
        if specification.get("CapacityReservationPreference") == "capacity-reservations-only":
            return self._fitting(instance_type, zone, None)
        return ()

    def _fitting(self, instance_type: str, zone: str, members: Sequence[str] | None) -> tuple[str, ...]:
        """Return active reservations that fit; `members` None means those open to all."""
        return tuple(
            name
            for name, reservation in self.reservations.items()
            if (reservation.instance_type, reservation.zone, reservation.state()) == (instance_type, zone, "active")
            and (reservation.match == "open" if members is None else name in members)
        )

    def describe(self, reservation: PlaceReservation) -> dict[str, Any]:
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
            "EbsOptimized": reservation.ebs_optimized,
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
        end, end_type = utc(params.get("EndDate")), params.get("EndDateType") or "unlimited"
        if (end_type == "limited") != (end is not None):
            raise AwsError("InvalidParameterCombination", "EndDate goes with EndDateType=limited and only with it")
        if not params.get("AvailabilityZone"):
            raise AwsError("MissingParameter", "AvailabilityZone is required (AvailabilityZoneId is not rehearsed)")
        reservation = PlaceReservation(
            reservation_id=f"cr-{secrets.token_hex(9)[:17]}",
            instance_type=params["InstanceType"],
            platform=params["InstancePlatform"],
            zone=params["AvailabilityZone"],
            count=int(params["InstanceCount"]),
            end_type=end_type,
            end=end,
            start=datetime.now(UTC),
            match=params.get("InstanceMatchCriteria") or "open",
            ebs_optimized=bool(params.get("EbsOptimized")),
        )
        return {"CapacityReservation": self._keep(reservation, params)}

    def _keep(self, reservation: PlaceReservation, params: Parameters) -> dict[str, Any]:
        self.reservations[reservation.reservation_id] = reservation
        self.world.backend("ec2").create_tags([reservation.reservation_id], specified_tags(params))
        return self.describe(reservation)

    def find(self, reservation_id: str) -> PlaceReservation:
        try:
            return self.reservations[reservation_id]
        except KeyError:
            message = f"The capacity reservation '{reservation_id}' does not exist"
            raise AwsError("InvalidCapacityReservationId.NotFound", message) from None

    def describe_capacity_reservations(self, params: Parameters) -> dict[str, Any]:
        reservation_ids = params.get("CapacityReservationIds") or list(self.reservations)
        documents = []
        for reservation in [self.find(wanted_id) for wanted_id in reservation_ids]:
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
                documents.append(self.describe(reservation))
        return {"CapacityReservations": documents}

    def modify_capacity_reservation(self, params: Parameters) -> dict[str, Any]:
        reservation = self.find(params["CapacityReservationId"])
        if reservation.kind == "capacity-block" or reservation.state() != "active":
            raise AwsError("InvalidState", f"{reservation.reservation_id} ({reservation.kind}) cannot be modified")
        reservation.count = int(params.get("InstanceCount") or reservation.count)
        if params.get("EndDateType") == "unlimited":
            reservation.end, reservation.end_type = None, "unlimited"
        elif params.get("EndDate"):
            reservation.end, reservation.end_type = utc(params["EndDate"]), "limited"
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
        offers = offerings(params, self.world.region, self.blocks)
        self.offerings |= {str(offer["CapacityBlockOfferingId"]): offer for offer in offers}
        return {"CapacityBlockOfferings": offers}

    def purchase_capacity_block(self, params: Parameters) -> dict[str, Any]:
        offering = self.offerings.get(params["CapacityBlockOfferingId"])
        if offering is None:
            raise AwsError("InvalidCapacityBlockOfferingId.NotFound", f"no {params['CapacityBlockOfferingId']}")
        reservation = PlaceReservation(
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
            paid=self.blocks.payment == "succeeds",
            late=timedelta(seconds=self.blocks.late_s),
        )
        if self.blocks.sold_out:
            del self.offerings[params["CapacityBlockOfferingId"]]
        return {"CapacityReservation": self._keep(reservation, params)}

    def check(self, launch: InstanceLaunch) -> None:
        """Refuse a launch without a place in its reservation, which must be active and fit.

        A launch that targets a group needs a place only if it requests reservations only: else it runs on demand.
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-cr-group.html
        """
        if launch.reservations_only and not launch.capacity_reservation_id:
            self._check_pool(launch)
        if not launch.capacity_reservation_id:
            return
        reservation = self.reservations.get(launch.capacity_reservation_id)
        if reservation is None:
            message = f"The capacity reservation '{launch.capacity_reservation_id}' does not exist"
            raise LaunchRefused("InvalidCapacityReservationId.NotFound", message)
        demand = (launch.instance_type, launch.zone)
        if demand != (reservation.instance_type, reservation.zone):
            message = f"{reservation.reservation_id} is for {reservation.instance_type} in {reservation.zone}: {demand}"
            raise LaunchRefused("InvalidParameterValue", message)
        if (launch.market == "capacity-block") != (reservation.kind == "capacity-block"):
            message = f"MarketType {launch.market} does not go with a reservation of type {reservation.kind}"
            raise LaunchRefused("InvalidParameterCombination", message)
        is_expired = (
            reservation.kind == "capacity-block" and reservation.end and reservation.end - ENDING <= datetime.now(UTC)
        )
        if is_expired or reservation.state() != "active" or self.users(reservation) >= reservation.count:
            message = f"The capacity reservation {reservation.reservation_id} has insufficient available capacity"
            raise LaunchRefused("ReservationCapacityExceeded", message)

    def _check_pool(self, launch: InstanceLaunch) -> None:
        group = launch.capacity_reservation_group
        members = self.blocks.groups.get(group, ()) if group else None
        fitting = [self.reservations[name] for name in self._fitting(launch.instance_type, launch.zone, members)]
        if all(self.users(name) >= name.count for name in fitting):
            description = group or "that match the launch"
            message = f"There is insufficient capacity in the capacity reservations {description}"
            raise LaunchRefused("ReservationCapacityExceeded", message)

    def end_blocks(self) -> None:
        """Terminate a block's instances half an hour before its end, as EC2 does."""
        with self.world.lock:
            for block in self.reservations.values():
                is_ending = block.kind == "capacity-block" and block.end and block.end - ENDING <= datetime.now(UTC)
                if is_ending and (running := self.in_block(block)):
                    self.world.backend("ec2").terminate_instances(running)


def _target(data: dict[str, Any]) -> str | None:
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    return target.get("CapacityReservationId")


def install(world: World) -> None:
    EC2_RESOURCE_TO_PREFIX["capacity-reservation"], EC2_PREFIX_TO_RESOURCE["cr"] = "cr", "capacity-reservation"
    reservations = Reservations(world)
    add_backend(world, EC2Response, reservations)
    world.launch_hooks.append(reservations.check)
    world.routes["/_site/blocks"] = reservations.route
    world.routes["/_site/bought"] = reservations.hold
    world.block_ends = lambda name: reservations.find(name).end
    world.schedule_every(PERIOD_S, reservations.end_blocks)
