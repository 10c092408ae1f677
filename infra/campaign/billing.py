"""The current hourly bill: looks which lines of the plan have their resources, and says what ends them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account
from infra.aws.reservations import Reservation, find_reservation
from infra.cluster.nodes import instances_with
from infra.kinds import kind_named
from infra.plan.estimates.cost import DATA_NODES, CostLine
from infra.plan.estimates.figure import cents
from infra.plan.purchase import own_reservation
from infra.plan.survey import environment
from infra.session.context import Context
from infra.spec.campaign import Capacity
from infra.spec.names import CAMPAIGN_TAG, DATA_POOL, Names

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


@dataclass(frozen=True)
class Bill:
    """Lines that bill now."""

    lines: tuple[tuple[str, Decimal], ...]
    """(what, USD per hour)."""
    unseen: tuple[str, ...]
    """Lines that could not be looked at."""
    beyond: str = ""
    """Bill that `bivouac down` does not end."""

    @property
    def usd_per_hour(self) -> Decimal:
        return sum((usd for _, usd in self.lines), Decimal(0))

    @property
    def bound(self) -> str:
        """Return the words before an amount that may be more, since a line could not be looked at."""
        return "at least " if self.unseen else ""

    def sentence(self, campaign: str) -> str:
        remark = f"; {self.beyond}" if self.beyond else ""
        if not self.lines and not self.unseen:
            return f"nothing of this campaign bills by the hour now{remark}"
        parts = ", ".join(f"{title} {cents(usd)}" for title, usd in self.lines)
        blind = f"; could not look for {', '.join(self.unseen)}" if self.unseen else ""
        total = f"{self.bound}{cents(self.usd_per_hour)}"
        return f"bills now: {total} USD/h ({parts or 'nothing seen'}{blind}); `bivouac down {campaign}` ends it{remark}"


def bill(context: Context) -> Bill:
    """Look at each line of the plan that bills by the hour. Nothing of an existing cluster does."""
    if not environment(context.spec).makes_cluster:
        return Bill((), (), "the nodes are borrowed, and stay as they are")
    lines: list[tuple[str, Decimal]] = []
    unseen: list[str] = []
    nodes = 0
    for line in context.plan.cost:
        look = _LOOKS.get(line.name)
        if look is None or not line.usd_per_hour:
            continue
        try:
            present, count = look(context.account, context.names)
        except (ClientError, BotoCoreError):
            unseen.append(line.name)
            continue
        nodes = present if line.gpu else nodes
        if present:
            title = f"{present} x {line.name}" if line.gpu else line.name
            lines.append((title, line.usd_per_hour * present / (count or _planned_count(context, line))))
    lines += _unused_places(context, nodes, unseen)
    note = bills_on(context) or ""
    return Bill(tuple(lines), tuple(unseen), f"but {note}" if own_reservation(context.spec.nodes) and note else note)


def _unused_places(context: Context, nodes: int, unseen: list[str]) -> list[tuple[str, Decimal]]:
    """Return the lines for reserved places without a node."""
    try:
        reservation = find_reservation(context.account, context.spec)
    except (ClientError, BotoCoreError):
        unseen.append("reservation")
        return []
    places = unused_places(context, reservation, nodes) if reservation else 0
    if not places or reservation is None:
        return []
    return [(f"{places} unused of reservation {reservation.reservation_id}", node_usd_per_hour(context) * places)]


def _planned_count(context: Context, line: CostLine) -> int:
    """Return the number of resources that the plan's rate covers."""
    if line.name == _ENDPOINTS:
        return len(context.spec.endpoint_services)
    if line.name == DATA_NODES and context.spec.data is not None:
        return context.spec.data.prepare.nodes
    return context.spec.nodes.count if line.gpu else 1


def _with_name(name: Callable[[Names], str]) -> Callable[[Account, Names], tuple[int, int]]:
    """Return a function that counts running instances by their Name tag."""

    def look(account: Account, names: Names) -> tuple[int, int]:
        return len(instances_with(account, "pending", "running", Name=name(names))), 0

    return look


def _cluster(account: Account, names: Names) -> tuple[int, int]:
    pages = account.client("eks").get_paginator("list_clusters").paginate()
    return int(any(names.cluster in page["clusters"] for page in pages)), 1


def _with_tag(name: str, limit: int) -> Callable[[Account, Names], tuple[int, int]]:
    """Return a function that counts billing resources of a kind with the campaign's tag, at most `limit` unless 0."""

    def look(account: Account, names: Names) -> tuple[int, int]:
        kind = kind_named(name)
        billed_things = (thing for thing in kind.things(account) if thing.tags.get(CAMPAIGN_TAG) == names.campaign)
        present = sum(kind.price(thing.traits) != 0 for thing in billed_things)
        return min(limit or present, present), limit

    return look


_ENDPOINTS = "interface endpoints"
_LOOKS: dict[str, Callable[[Account, Names], tuple[int, int]]] = {
    "GPU nodes": _with_name(lambda names: names.gpu_group),
    DATA_NODES: _with_name(lambda names: names.of("node group", DATA_POOL)),
    "system node": _with_name(lambda names: names.system_group),
    "builder": _with_name(lambda names: names.builder),
    "EKS control plane": _cluster,
    "NAT gateway": _with_tag("NAT gateway", 1),
    _ENDPOINTS: _with_tag("VPC endpoint", 0),
    "FSx for Lustre": _with_tag("file system", 1),
}
"""Line of the plan -> function that returns (resources present, resources that the rate covers; 0: the planned
number)."""
