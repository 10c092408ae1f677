"""Rules for the purchase of nodes on AWS. Pure; check reports all violations, a run refuses the first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from infra.plan.catalogue import InstanceType
from infra.spec.campaign import Capacity, Nodes

OPEN = "open"
"""Reservation id that stands for every open reservation that matches the nodes."""
RESERVATIONS_ONLY = "capacity-reservations-only"
"""EC2's preference for starting in a reservation or not at all."""
LARGEST_BLOCK = 64
"""Most instances in one capacity block."""
SCALE_DOWN = timedelta(minutes=40)
"""Time before a block's end at which EKS sets its node group to zero; EC2 terminates instances 30 minutes before.
https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html"""
_ID = re.compile(r"^cr-[0-9a-f]{8,17}$")
_GROUP = re.compile(r"^arn:aws[a-z-]*:resource-groups:[a-z0-9-]+:[0-9]{12}:group/[A-Za-z0-9_.-]+$")
RESERVED = (Capacity.RESERVATION, Capacity.CAPACITY_BLOCK)


def own_reservation(nodes: Nodes) -> str | None:
    """Return the id of the nodes' single reservation; None for a group, `open`, and other purchases."""
    reservation = nodes.reservation_id or ""
    return reservation if nodes.capacity is Capacity.RESERVATION and reservation.startswith("cr-") else None


def quota_holds(count: int, item: InstanceType, vcpus: int) -> bool:
    """Return True if `vcpus` free vCPUs of a quota are enough for all nodes."""
    return count * item.vcpus <= vcpus


@dataclass(frozen=True)
class PurchaseProblem:
    field: str
    """Field of the spec's section `nodes`."""
    what: str
    seen: object
    cure: str


def purchase_problems(nodes: Nodes, item: InstanceType | None) -> Iterator[PurchaseProblem]:
    """Yield all errors in the purchase of the nodes; `item` is None if the type is unknown."""
    reservation, capacity = nodes.reservation_id, nodes.capacity
    if capacity in RESERVED and not reservation:
        cure = "buy or make it first, then write its id: cr-..."
        if capacity is Capacity.RESERVATION:
            cure += ", the ARN of a resource group of reservations, or open"
        yield PurchaseProblem("reservation_id", f"capacity {capacity} needs the reservation to use", "nothing", cure)
    elif capacity not in RESERVED and reservation is not None:
        cure = "write capacity: reservation or capacity-block, or remove it"
        yield PurchaseProblem("reservation_id", f"capacity {capacity} uses no reservation", reservation, cure)
    elif reservation and capacity is Capacity.CAPACITY_BLOCK and not _ID.match(reservation):
        cure = "write its id: cr- and 17 hexadecimal digits"
        yield PurchaseProblem("reservation_id", "this is no id of a capacity block", reservation, cure)
    elif reservation and not (reservation == OPEN or _ID.match(reservation) or _GROUP.match(reservation)):
        cure = "write its id: cr- and 17 hexadecimal digits, the ARN of a resource group, or open"
        yield PurchaseProblem("reservation_id", "this is no id of a capacity reservation", reservation, cure)
    if capacity is Capacity.CAPACITY_BLOCK:
        yield from _block_problems(nodes, item)
    elif nodes.block_end is not None:
        cure = "remove it, or write capacity: capacity-block"
        yield PurchaseProblem("block_end", f"capacity {capacity} has no block", nodes.block_end.isoformat(), cure)


def _block_problems(nodes: Nodes, item: InstanceType | None) -> Iterator[PurchaseProblem]:
    if item is not None and not item.capacity_block:
        cure = "write capacity: on-demand, or choose another type"
        yield PurchaseProblem("capacity", "AWS sells no capacity blocks of this type", nodes.instance_type, cure)
    if nodes.count > LARGEST_BLOCK:
        cure = f"write {LARGEST_BLOCK} or less"
        yield PurchaseProblem("count", "a capacity block holds fewer instances", nodes.count, cure)
    if nodes.placement_group:
        detail, cure = "placement_group: true with capacity: capacity-block", "remove placement_group: blocks are close"
        yield PurchaseProblem("placement_group", "a capacity block takes no placement group", detail, cure)
