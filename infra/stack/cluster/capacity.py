"""Purchase options of GPU nodes as arguments of EC2 and EKS. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infra.errors import UserError
from infra.plan.catalogue import InstanceType
from infra.plan.purchase import OPEN, RESERVATIONS_ONLY, purchase_problems
from infra.spec.campaign import Capacity, Nodes

SPARE_NODES = 1
"""Room above the campaign's size: a replacement may come before the broken node has gone."""


@dataclass(frozen=True)
class PurchaseTerms:
    capacity_type: str
    """The node group's: ON_DEMAND, SPOT or CAPACITY_BLOCK."""
    market_type: str | None
    """The launch template's; None leaves it to the node group."""
    reservation: dict[str, Any] | None
    """The launch template's capacity_reservation_specification; None leaves it to EC2."""
    placement_group: bool


def purchase(nodes: Nodes, item: InstanceType) -> PurchaseTerms:
    """Return the purchase. Raises `UserError` for an option that AWS does not sell."""
    for problem in purchase_problems(nodes, item):
        raise UserError(problem.what, seen=problem.seen, cure=problem.cure)
    kinds = {Capacity.SPOT: "SPOT", Capacity.CAPACITY_BLOCK: "CAPACITY_BLOCK"}
    return PurchaseTerms(
        capacity_type=kinds.get(nodes.capacity, "ON_DEMAND"),
        market_type="capacity-block" if nodes.capacity is Capacity.CAPACITY_BLOCK else None,
        reservation=_reservation(nodes.reservation_id),
        placement_group=wants_placement_group(nodes),
    )


def _reservation(reservation: str | None) -> dict[str, Any] | None:
    """Return the launch template's reservation. `open` and a group are limited to reservations: else EC2 would buy on
    demand once they are full.
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CapacityReservationSpecification.html"""
    if not reservation:
        return None
    preference = {"capacity_reservation_preference": RESERVATIONS_ONLY}
    if reservation == OPEN:
        return preference
    if reservation.startswith("arn:"):
        return {**preference, "capacity_reservation_target": {"capacity_reservation_resource_group_arn": reservation}}
    return {"capacity_reservation_target": {"capacity_reservation_id": reservation}}


def wants_placement_group(nodes: Nodes) -> bool:
    """Return the spec's choice, by default True for several nodes whose capacity is not placed already."""
    if nodes.placement_group is not None:
        return nodes.placement_group
    return nodes.count > 1 and nodes.capacity in (Capacity.ON_DEMAND, Capacity.SPOT)
