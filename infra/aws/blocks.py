"""Capacity blocks in EC2, and the check that a campaign fits its block."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from infra.aws.account import Account, says_missing
from infra.errors import UserError
from infra.plan.purchase import SCALE_DOWN
from infra.spec.campaign import Capacity, Spec
from trainer.contract.frozen import Frozen

LOST = {
    "payment-failed": "the payment failed within 12 hours, and AWS took the block back; it bills nothing",
    "expired": "the block is over",
    "cancelled": "the reservation was cancelled",
    "failed": "AWS could not make the reservation",
    "unavailable": "AWS says that the block is unavailable",
    "unsupported": "AWS no longer supports the reservation",
}
"""State from which a reservation never becomes active -> its meaning."""


class Block(Frozen):
    reservation_id: str
    kind: Literal["capacity-block", "default"]
    state: str
    instance_type: str
    zone: str
    count: int
    """0 before the block begins, while EC2 reports none."""
    starts: datetime
    ends: datetime | None

    @property
    def nodes_until(self) -> datetime | None:
        """Time at which EKS begins to remove the nodes."""
        return None if self.ends is None else self.ends - SCALE_DOWN


def find_block(account: Account, spec: Spec) -> Block | None:
    """Return the spec's capacity block, None if it uses none; raise `UserError` if EC2 does not have it."""
    reservation_id = spec.nodes.reservation_id
    if spec.nodes.capacity is not Capacity.CAPACITY_BLOCK or reservation_id is None:
        return None
    description = describe(account, reservation_id)
    if description is None:
        raise UserError(
            "the account has no such capacity block here",
            seen=f"{reservation_id} in {account.region}",
            cure="`bivouac offers SPEC` shows what can be bought, `bivouac block buy SPEC OFFERING` buys it",
        )
    return block_of(description)


def describe(account: Account, reservation_id: str) -> dict[str, Any] | None:
    """Return EC2's description of a reservation of any kind; None if there is none."""
    ec2 = account.client("ec2")
    try:
        reservations = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])[
            "CapacityReservations"
        ]
    except ec2.exceptions.ClientError as error:
        if not says_missing(error):
            raise
        return None
    return reservations[0] if reservations else None


def block_of(item: dict[str, Any]) -> Block:
    return Block(
        reservation_id=item["CapacityReservationId"],
        kind=item.get("ReservationType") or "default",
        state=item["State"],
        instance_type=item["InstanceType"],
        zone=item["AvailabilityZone"],
        count=item.get("TotalInstanceCount") or 0,
        starts=item.get("StartDate") or item["CreateDate"],
        ends=item.get("EndDate"),
    )


def refuse_unfit(block: Block, spec: Spec, now: datetime, time_needed: timedelta) -> None:
    """Raise `UserError` if the campaign does not fit the block; `time_needed`: until its archive is written."""
    nodes = spec.nodes
    message, detail, cure = "", "", "correct the spec, or buy another block: `bivouac offers SPEC`"
    if block.kind != "capacity-block":
        message, detail = "the reservation is no capacity block", f"{block.reservation_id}: {block.kind}"
        cure = "write capacity: reservation"
    elif block.state in LOST:
        message, detail = "the block will never be active", f"{block.state}: {LOST[block.state]}"
    elif (block.instance_type, block.zone) != (nodes.instance_type, spec.zone):
        message = "the block is of another type or zone"
        detail = f"{block.instance_type} in {block.zone}, the spec says {nodes.instance_type} in {spec.zone}"
    elif 0 < block.count < nodes.count:
        message, detail = "the block holds fewer instances than the campaign", f"{block.count}, wanted {nodes.count}"
    elif block.nodes_until is not None and max(now, block.starts) + time_needed > block.nodes_until:
        message = "the block ends before training and archive are done"
        detail = (
            f"{time_needed} from {max(now, block.starts).isoformat(timespec='minutes')} on, nodes until "
            f"{block.nodes_until.isoformat(timespec='minutes')}, 40 minutes before the block's end"
        )
    if message:
        raise UserError(message, seen=detail, cure=cure)
