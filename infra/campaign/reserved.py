"""The cost of a capacity reservation: every place bills, used or not, until somebody cancels it; no stage does."""

from __future__ import annotations

from decimal import Decimal

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.reservations import Reservation, find_reservation
from infra.plan.estimates.figure import cents
from infra.plan.purchase import own_reservation
from infra.session.context import Context
from infra.spec.campaign import Capacity

_OTHERS = "unused reserved capacity still bills; it is outside of this campaign and not counted here"
"""Note for a group or open reservations: nobody knows which of them are meant for this campaign."""


def node_usd_per_hour(context: Context) -> Decimal:
    """Return the plan's price of one GPU node."""
    return sum((line.usd_per_hour for line in context.plan.cost if line.gpu), Decimal(0)) / context.spec.nodes.count


def unused_places(context: Context, reservation: Reservation, present: int) -> int:
    """Return the number of free places that this campaign's missing nodes would take; `present` nodes run. Others may
    share the reservation."""
    return min(reservation.free, max(0, context.spec.nodes.count - present)) if reservation.state == "active" else 0


def bills_on(context: Context) -> str | None:
    """Return the note for when no node uses the reservation any more, None if none bills."""
    if context.spec.nodes.capacity is not Capacity.RESERVATION:
        return None
    id = own_reservation(context.spec.nodes)
    if id is None:
        return _OTHERS
    rate = node_usd_per_hour(context)
    bill = f"{cents(rate)} USD/h for each place"
    try:
        reservation = find_reservation(context.account, context.spec)
    except (ClientError, BotoCoreError):
        return f"reservation {id} still bills, {bill}, until you cancel it: {cancelling(context)}"
    if reservation is None or reservation.state != "active":
        return None
    places = min(reservation.count, context.spec.nodes.count)
    total = f"{places} of its {reservation.count} places are {cents(rate * places)} USD/h"
    return f"reservation {id} still bills, used or not: {total}, until you cancel it: {cancelling(context)}"


def cancelling(context: Context) -> str:
    """Return the command that cancels the reservation."""
    options = f"--region {context.spec.region} --capacity-reservation-id {context.spec.nodes.reservation_id}"
    return f"`aws ec2 cancel-capacity-reservation {options}`"
