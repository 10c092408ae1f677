"""The bill of this hour by hand: what stands, at the plan's rates, what nobody could look at, and what bills on."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from infra.aws.reservations import Reservation
from infra.campaign import billing
from infra.plan.estimates.cost import DATA_NODES
from infra.spec.campaign import Spec
from infra.spec.names import CAMPAIGN_TAG, Names
from tests.example import example_spec
from tests.unit.record.cost_lines import line
from tests.worlds.s3 import refusal

RATE = Decimal(400)
"""USD an hour of all four nodes."""
PLAN = (
    line("GPU nodes", 400, gpu=True), line(DATA_NODES, 6), line("system node", 1), line("builder", 2),
    line("EKS control plane", "0.10"), line("NAT gateway", "0.05"), line("interface endpoints", "0.56"),
    line("FSx for Lustre", 7), line("S3 archive", 0, 50), line("of a newer plan", 9),
)  # fmt: skip
RESERVED = {"capacity": "reservation", "reservation_id": "cr-0123456789abcdef0"}
GROUP = {"capacity": "reservation", "reservation_id": "open"}
REFUSED = refusal("UnauthorizedOperation", 403, "DescribeInstances")
AWAY = EndpointConnectionError(endpoint_url="https://ec2")


class StandingResources:
    """EC2, EKS and the kinds' listings of one account; a service in `errors` answers with that."""

    def __init__(self, patch: pytest.MonkeyPatch, spec: Spec | None = None) -> None:
        self.spec = spec or example_spec(data={"prepare": {"nodes": 3}}, network={"egress": "endpoints"})
        self.names = Names(self.spec)
        self.instances: dict[str, int] = {}
        self.clusters: list[list[str]] = [["another"], []]
        self.things: dict[str, list[Any]] = {}
        self.reservation: Reservation | None = None
        self.errors: dict[str, Exception] = {}
        self.context: Any = SimpleNamespace(spec=self.spec, names=self.names, plan=SimpleNamespace(cost=PLAN))
        self.context.account = SimpleNamespace(client=self._client)
        patch.setattr(billing, "kind_named", self._kind)
        patch.setattr(billing, "find_reservation", self._find)

    def _raise(self, service: str) -> None:
        if service in self.errors:
            raise self.errors[service]

    def _client(self, service: str) -> Any:
        self._raise(service)
        pages = {"ec2": self._instances, "eks": lambda: [{"clusters": page} for page in self.clusters]}[service]
        return SimpleNamespace(get_paginator=lambda operation: SimpleNamespace(paginate=pages))

    def _instances(self, Filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        wanted = {row["Name"]: row["Values"] for row in Filters}
        assert wanted["instance-state-name"] == ["pending", "running"]
        (name,) = wanted["tag:Name"]
        yield {"Reservations": [{"Instances": [{}] * self.instances.get(name, 0)}]}

    def _kind(self, name: str) -> Any:
        self._raise(name)
        return SimpleNamespace(things=lambda account: self.things.get(name, []), price=lambda traits: traits["usd"])

    def _find(self, account: Any, spec: Spec) -> Reservation | None:
        self._raise("reservation")
        return self.reservation

    def stand(self, kind: str, *usd: int, campaign: str = "example") -> None:
        tags = {CAMPAIGN_TAG: campaign}
        self.things.setdefault(kind, []).extend(SimpleNamespace(tags=tags, traits={"usd": Decimal(n)}) for n in usd)

    def reserve(self, count: int, free: int, state: str = "active") -> None:
        self.reservation = Reservation(
            reservation_id="cr-0123456789abcdef0", kind="default", state=state, instance_type="p5.48xlarge",
            zone="us-east-1a", platform="Linux/UNIX", count=count, free=free, starts=None,
        )  # fmt: skip

    def bill(self) -> dict[str, Decimal]:
        return dict(billing.bill(self.context).lines)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> StandingResources:
    return StandingResources(monkeypatch)


def test_where_nothing_stands_nothing_bills(standing: StandingResources) -> None:
    standing.stand("NAT gateway", 1, campaign="another")
    bill = billing.bill(standing.context)
    assert bill == billing.Bill((), ()) and bill.usd_per_hour == 0
    assert bill.sentence("example") == "nothing of this campaign bills by the hour now"


def test_each_line_bills_by_what_stands_of_what_the_plan_covers(standing: StandingResources) -> None:
    names = standing.names
    standing.instances = {
        names.gpu_group: 3, names.of("node group", "data"): 2, names.system_group: 1, names.builder: 1
    }  # fmt: skip
    standing.clusters = [["another"], [names.cluster], []]
    standing.stand("NAT gateway", 1, 1)
    assert len(standing.spec.endpoint_services) == 14
    standing.stand("VPC endpoint", 1, 1, 1, 0, 0)
    standing.stand("file system", 5, 5)
    assert standing.bill() == {
        "3 x GPU nodes": Decimal(300), DATA_NODES: Decimal(4), "system node": Decimal(1), "builder": Decimal(2),
        "EKS control plane": Decimal("0.10"), "NAT gateway": Decimal("0.05"),
        "interface endpoints": Decimal("0.12"), "FSx for Lustre": Decimal(7),
    }  # fmt: skip
    bill = billing.bill(standing.context)
    assert bill.usd_per_hour == sum(standing.bill().values())
    assert bill.sentence("example").startswith("bills now: 314.27 USD/h (3 x GPU nodes 300.00, ")
    assert bill.sentence("example").endswith("); `bivouac down example` ends it")


def test_of_what_the_plan_has_once_one_bills_the_whole_line(standing: StandingResources) -> None:
    standing.stand("NAT gateway", 1)
    standing.stand("file system", 5)
    assert standing.bill() == {"NAT gateway": Decimal("0.05"), "FSx for Lustre": Decimal(7)}


def test_what_costs_nothing_is_no_line(standing: StandingResources) -> None:
    standing.stand("VPC endpoint", 0, 0)
    standing.stand("NAT gateway", 0)
    assert standing.bill() == {}


@pytest.mark.parametrize("error", [REFUSED, AWAY])
def test_what_could_not_be_looked_at_is_named_and_not_taken_for_nothing(
    standing: StandingResources, error: Exception
) -> None:
    standing.errors = {"ec2": error, "file system": error, "reservation": error}
    bill = billing.bill(standing.context)
    unseen = ("GPU nodes", DATA_NODES, "system node", "builder", "FSx for Lustre", "reservation")
    assert bill.unseen == unseen and not bill.lines
    assert bill.sentence("example") == (
        f"bills now: at least 0.00 USD/h (nothing seen; could not look for {', '.join(unseen)}); "
        "`bivouac down example` ends it"
    )


def test_a_fault_of_ours_is_not_taken_for_a_refusal(standing: StandingResources) -> None:
    for place in ("file system", "reservation"):
        standing.errors = {place: ValueError("a fault")}
        with pytest.raises(ValueError, match="a fault"):
            billing.bill(standing.context)


def test_nodes_that_nobody_could_count_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = StandingResources(monkeypatch, example_spec(nodes=RESERVED))
    standing.reserve(10, 9)
    standing.errors = {"ec2": REFUSED}
    assert standing.bill() == {"4 unused of reservation cr-0123456789abcdef0": RATE}


@pytest.mark.parametrize(
    ("nodes", "free", "state", "places"),
    [
        (0, 9, "active", 4), (1, 2, "active", 2), (1, 9, "active", 3), (4, 9, "active", 0), (5, 9, "active", 0),
        (0, 0, "active", 0), (0, 9, "expired", 0),
    ],
)  # fmt: skip
def test_places_that_this_campaigns_nodes_do_not_take_bill_too(
    monkeypatch: pytest.MonkeyPatch, nodes: int, free: int, state: str, places: int
) -> None:
    standing = StandingResources(monkeypatch, example_spec(nodes=RESERVED))
    standing.instances = {standing.names.gpu_group: nodes}
    standing.reserve(10, free, state)
    unused = {title: usd for title, usd in standing.bill().items() if "unused" in title}
    wanted = {f"{places} unused of reservation cr-0123456789abcdef0": places * RATE / 4} if places else {}
    assert unused == wanted and billing.node_usd_per_hour(standing.context) == 100


def test_a_reservation_bills_until_it_is_cancelled_and_the_command_for_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing = StandingResources(monkeypatch, example_spec(nodes=RESERVED))
    command = "`aws ec2 cancel-capacity-reservation --region us-east-1 --capacity-reservation-id cr-0123456789abcdef0`"
    for count, places in ((10, 4), (3, 3)):
        standing.reserve(count, 0)
        note = billing.bills_on(standing.context)
        assert note == (
            f"reservation cr-0123456789abcdef0 still bills, used or not: {places} of its {count} places are "
            f"{places * 100}.00 USD/h, until you cancel it: {command}"
        )
    assert billing.bill(standing.context).sentence("example") == (
        f"nothing of this campaign bills by the hour now; but {note}"
    )
    standing.errors["reservation"] = REFUSED
    assert billing.bills_on(standing.context) == (
        f"reservation cr-0123456789abcdef0 still bills, 100.00 USD/h for each place, until you cancel it: {command}"
    )
    del standing.errors["reservation"]
    standing.reserve(10, 0, "expired")
    assert billing.bills_on(standing.context) is None
    standing.reservation = None
    assert billing.bills_on(standing.context) is None


def test_of_open_reservations_nobody_knows_which_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = StandingResources(monkeypatch, example_spec(nodes=GROUP))
    note = billing.bills_on(standing.context)
    assert note is not None and "not counted here" in note
    assert billing.bill(standing.context).sentence("example") == (
        f"nothing of this campaign bills by the hour now; {note}"
    )


def test_without_a_reservation_nothing_bills_on(standing: StandingResources) -> None:
    standing.reserve(10, 9)
    assert billing.bills_on(standing.context) is None
