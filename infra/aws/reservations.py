"""Capacity reservations (not blocks) in EC2, and the check that the spec's reservation has room for its nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from infra.aws.account import Account
from infra.aws.blocks import LOST, described
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
    named = own_reservation(spec.nodes)
    found = described(account, named) if named else None
    return None if found is None else _reservation(found)


def refused_reservation(account: Account, spec: Spec) -> Unsuitable | None:
    """Return the reason why not all nodes have a place; None if they do, or no reservation is used."""
    if spec.nodes.capacity is not Capacity.RESERVATION or not spec.nodes.reservation_id:
        return None
    if own_reservation(spec.nodes):
        return _unfit(find_reservation(account, spec), account, spec)
    return _too_few(account, spec)


def _unfit(found: Reservation | None, account: Account, spec: Spec) -> Unsuitable | None:
    nodes = spec.nodes
    if found is None:
        seen = f"{nodes.reservation_id} in {account.region}"
        return Unsuitable(what="the account has no such capacity reservation here", seen=seen, cure=_OFFERS)
    named, has = found.reservation_id, (found.instance_type, found.zone, found.platform)
    if found.kind == "capacity-block":
        cure = "write capacity: capacity-block"
        return Unsuitable(what="the reservation is a capacity block", seen=named, cure=cure)
    if found.state in LOST:
        seen = f"{named} is {found.state}: {LOST[found.state]}"
        return Unsuitable(what="the reservation will never be active", seen=seen, cure=f"make another one; {_OFFERS}")
    if has != (nodes.instance_type, spec.zone, PLATFORM):
        seen = f"{named}: {' '.join(has)}; wanted {nodes.instance_type} {spec.zone} {PLATFORM}"
        return Unsuitable(what="the reservation is of another type, zone or platform", seen=seen, cure="mend the spec")
    if found.state != "active":
        begins = f", it begins at {found.starts.isoformat(timespec='minutes')}" if found.starts else ""
        cure = "run the campaign once it is active"
        return Unsuitable(what="the reservation is not active yet", seen=f"{named} is {found.state}{begins}", cure=cure)
    if found.free < nodes.count:
        seen = f"{named}: {found.free} of {found.count} places are free, {nodes.count} wanted"
        cure = "end what uses it, add places (`aws ec2 modify-capacity-reservation`), or take fewer nodes"
        return Unsuitable(what="the reservation has fewer free places than the campaign nodes", seen=seen, cure=cure)
    return None


def _too_few(account: Account, spec: Spec) -> Unsuitable | None:
    """Return the reason, if all matching reservations have too few free places. For `open` the open ones count; for a
    group all matching ones of the account, an upper bound, since EC2 does not tell a group's members."""
    nodes = spec.nodes
    wanted = {
        "instance-type": nodes.instance_type,
        "availability-zone": spec.zone,
        "instance-platform": PLATFORM,
        "state": "active",
    }
    if nodes.reservation_id == OPEN:
        wanted["instance-match-criteria"] = "open"
    filters = [{"Name": name, "Values": [value]} for name, value in wanted.items()]
    pages = account.client("ec2").get_paginator("describe_capacity_reservations").paginate(Filters=filters)
    found = [_reservation(one) for page in pages for one in page["CapacityReservations"]]
    matching = [one for one in found if one.kind == "default"]
    free = sum(one.free for one in matching)
    if free >= nodes.count:
        return None
    return Unsuitable(
        what="the account's matching reservations have fewer free places than the campaign nodes",
        seen=f"{free} free in {', '.join(one.reservation_id for one in matching) or 'none'}; wanted {nodes.count} x "
        f"{nodes.instance_type} in {spec.zone}",
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
