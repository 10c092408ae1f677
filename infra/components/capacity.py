"""How GPU nodes are bought, in EC2's and EKS's words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from infra.catalogue import InstanceType
from infra.errors import UserError
from infra.spec import Capacity, Nodes

SPARE_NODES = 1
"""Room above the campaign's size, so that a replacement may come before the broken node has gone."""


@dataclass(frozen=True)
class Purchase:
    capacity_type: str
    """Of the node group: ON_DEMAND, SPOT or CAPACITY_BLOCK."""
    market_type: str | None
    """Of the launch template; None leaves it to the node group."""
    reservation_id: str | None
    placement_group: bool


def purchase(nodes: Nodes, item: InstanceType) -> Purchase:
    """Raises `UserError` for an option that AWS does not sell."""
    wants_id = nodes.capacity in (Capacity.RESERVATION, Capacity.CAPACITY_BLOCK)
    if wants_id and not nodes.reservation_id:
        raise UserError(
            f"capacity {nodes.capacity.value} needs the reservation",
            seen=None,
            cure="set nodes.reservation_id to cr-...",
        )
    if not wants_id and nodes.reservation_id:
        raise UserError(
            f"capacity {nodes.capacity.value} takes no reservation",
            seen=nodes.reservation_id,
            cure="remove nodes.reservation_id, or set nodes.capacity to reservation or capacity-block",
        )
    if nodes.capacity is Capacity.CAPACITY_BLOCK and not item.capacity_block:
        raise UserError("this type is not sold by capacity block", seen=item.name, cure="choose another nodes.capacity")
    if nodes.capacity is Capacity.CAPACITY_BLOCK and nodes.placement_group:
        raise UserError(
            "a capacity block takes no placement group",
            seen=True,
            cure="remove nodes.placement_group: blocks lie close",
        )
    kinds = {Capacity.SPOT: "SPOT", Capacity.CAPACITY_BLOCK: "CAPACITY_BLOCK"}
    return Purchase(
        capacity_type=kinds.get(nodes.capacity, "ON_DEMAND"),
        market_type="capacity-block" if nodes.capacity is Capacity.CAPACITY_BLOCK else None,
        reservation_id=nodes.reservation_id,
        placement_group=wants_placement_group(nodes),
    )


def wants_placement_group(nodes: Nodes) -> bool:
    """The spec's word, else: where there are nodes to bring together and the capacity is not placed already."""
    if nodes.placement_group is not None:
        return nodes.placement_group
    return nodes.count > 1 and nodes.capacity in (Capacity.ON_DEMAND, Capacity.SPOT)
