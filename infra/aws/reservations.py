"""Capacity reservations (not blocks) in EC2, and the check that the spec's reservation has room for its nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from infra.aws.account import Account, every
from infra.aws.blocks import LOST, describe
from infra.plan.facts import Unsuitable
from infra.plan.purchase import OPEN, own_reservation
from infra.spec.campaign import Capacity, Spec
from trainer.contract.frozen import Frozen

PLATFORM = "Linux/UNIX"
"""Platform of all nodes."""
_OFFERS = "`bivouac offers SPEC` lists what the account holds"


class Reservation(Frozen):
    """A reservation bills the on-demand rate for every place, used or not, until it is cancelled or ends."""

    reservation_id: str
    kind: str
    state: str
    instance_type: str
    zone: str
    platform: str
    count: int
    """Places in total; 0 unless it is or will be active."""
    free: int
    starts: datetime | None


def find_reservation(account: Account, spec: Spec) -> Reservation | None:
    """Return the reservation that the spec names by id; None if there is none, or another purchase is used."""
    reservation_id = own_reservation(spec.nodes)
    description = describe(account, reservation_id) if reservation_id else None
    return None if description is None else _reservation(description)


def refused_reservation(account: Account, spec: Spec) -> Unsuitable | None:
    """Return the reason why not all nodes have a place; None if they do, or no reservation is used."""
    if spec.nodes.capacity is not Capacity.RESERVATION or not spec.nodes.reservation_id:
        return None
    if own_reservation(spec.nodes):
        return _unfit(find_reservation(account, spec), account, spec)
    return _too_few(account, spec)


def _unfit(reservation: Reservation | None, account: Account, spec: Spec) -> Unsuitable | None:
    nodes = spec.nodes
    if reservation is None:
        detail = f"{nodes.reservation_id} in {account.region}"
        return Unsuitable(what="the account has no such capacity reservation here", seen=detail, cure=_OFFERS)
    reservation_id = reservation.reservation_id
    properties = (reservation.instance_type, reservation.zone, reservation.platform)
    if reservation.kind == "capacity-block":
        cure = "write capacity: capacity-block"
        return Unsuitable(what="the reservation is a capacity block", seen=reservation_id, cure=cure)
    if reservation.state in LOST:
        detail = f"{reservation_id} is {reservation.state}: {LOST[reservation.state]}"
        return Unsuitable(what="the reservation will never be active", seen=detail, cure=f"make another one; {_OFFERS}")
    if properties != (nodes.instance_type, spec.zone, PLATFORM):
        detail = f"{reservation_id}: {' '.join(properties)}; wanted {nodes.instance_type} {spec.zone} {PLATFORM}"
        return Unsuitable(
            what="the reservation is of another type, zone or platform", seen=detail, cure="mend the spec"
        )
    if reservation.state != "active":
        begins = f", it begins at {reservation.starts.isoformat(timespec='minutes')}" if reservation.starts else ""
        cure = "run the campaign once it is active"
        return Unsuitable(
            what="the reservation is not active yet", seen=f"{reservation_id} is {reservation.state}{begins}", cure=cure
        )
    if reservation.free < nodes.count:
        detail = f"{reservation_id}: {reservation.free} of {reservation.count} places are free, {nodes.count} wanted"
        cure = "end what uses it, add places (`aws ec2 modify-capacity-reservation`), or take fewer nodes"
        return Unsuitable(what="the reservation has fewer free places than the campaign nodes", seen=detail, cure=cure)
    return None


def _too_few(account: Account, spec: Spec) -> Unsuitable | None:
    """Return the reason, if all matching reservations have too few free places. For `open` the open ones count; for a
    group all matching ones of the account, an upper bound, since EC2 does not tell a group's members."""
    nodes = spec.nodes
    request = {
        "instance-type": nodes.instance_type,
        "availability-zone": spec.zone,
        "instance-platform": PLATFORM,
        "state": "active",
    }
    if nodes.reservation_id == OPEN:
        request["instance-match-criteria"] = "open"
    filters = [{"Name": name, "Values": [value]} for name, value in request.items()]
    rows = every(account.client("ec2"), "describe_capacity_reservations", "CapacityReservations", Filters=filters)
    matching = [reservation for reservation in map(_reservation, rows) if reservation.kind == "default"]
    free = sum(reservation.free for reservation in matching)
    if free >= nodes.count:
        return None
    names = ", ".join(reservation.reservation_id for reservation in matching) or "none"
    return Unsuitable(
        what="the account's matching reservations have fewer free places than the campaign nodes",
        seen=f"{free} free in {names}; wanted {nodes.count} x {nodes.instance_type} in {spec.zone}",
        cure=f"add or free places before the campaign requests its nodes, or take fewer nodes; {_OFFERS}",
    )


def _reservation(item: dict[str, Any]) -> Reservation:
    return Reservation(
        reservation_id=item["CapacityReservationId"],
        kind=item.get("ReservationType") or "default",
        state=item["State"],
        instance_type=item["InstanceType"],
        zone=item["AvailabilityZone"],
        platform=item["InstancePlatform"],
        count=item.get("TotalInstanceCount") or 0,
        free=item.get("AvailableInstanceCount") or 0,
        starts=item.get("StartDate"),
    )
