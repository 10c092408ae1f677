"""A reservation is looked at before anybody says yes, and told of while it bills: against the emulated account."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra import target
from infra.aws import blocks
from infra.aws.account import Account
from infra.aws.asked import ask_aws
from infra.campaign import billing, capacity
from infra.campaign.billing import bills_on
from infra.errors import UserError
from infra.plan.checks import Finding, Level, check
from infra.plan.estimates.cost import RESERVATION_REST
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import CampaignState
from infra.rehearsal.site import surroundings
from infra.session import block_clock
from infra.spec.campaign import Spec, SpecFile
from infra.spec.names import Names
from tests.example import example_spec
from tests.rehearsal.aws_account import Account as Account_
from tests.rehearsal.aws_account import World

ZONE, TYPE = "us-east-1a", "p5.48xlarge"


@pytest.fixture
def ec2(world: World) -> Any:
    return Account_(world, *world.operator_key).ec2


@pytest.fixture
def held(ec2: Any) -> Iterator[str]:
    """Eight places, open to all."""
    made = ec2.create_capacity_reservation(
        InstanceType=TYPE, InstancePlatform="Linux/UNIX", AvailabilityZone=ZONE, InstanceCount=8
    )["CapacityReservation"]["CapacityReservationId"]
    yield made
    (left,) = ec2.describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"]
    if left["State"] == "active":
        ec2.cancel_capacity_reservation(CapacityReservationId=made)


def reserved(named: str, zone: str = ZONE, **nodes: Any) -> Spec:
    chosen = {"count": 8, "capacity": "reservation", "reservation_id": named} | nodes
    return example_spec(zone=zone, nodes=chosen, money={"budget_usd": "50000"})


def found(here: Account, spec: Spec) -> dict[str, Finding]:
    """What `bivouac check` says of reservation and types once AWS was asked, by rule."""
    told: list[str] = []
    facts = ask_aws(here, spec, survey(spec), told.append)
    assert not told
    seen = check(SpecFile(path=Path("spec.yaml"), spec=spec, lines={}), facts, date(2026, 11, 21))
    return {one.rule: one for one in seen if one.rule in ("zone-offers", "reservation-room")}


def test_a_reservation_that_cannot_hold_the_nodes_is_refused_before_the_yes(here: Account, ec2: Any, held: str) -> None:
    assert not found(here, reserved(held))
    wrong = {
        "no such capacity reservation": reserved("cr-0123456789abcdef0"),
        "another type, zone": reserved(held, zone="us-east-1b"),
        "of another type": reserved(held, instance_type="p5en.48xlarge"),
        "fewer free places": reserved(held, count=16),
    }
    for what, spec in wrong.items():
        finding = found(here, spec)["reservation-room"]
        assert (finding.level, finding.field) == (Level.ERROR, "nodes.reservation_id")
        assert what in finding.message and finding.seen and finding.cure, finding
    ec2.cancel_capacity_reservation(CapacityReservationId=held)
    gone = found(here, reserved(held))["reservation-room"]
    assert gone.level is Level.ERROR and "never be active" in gone.message and "cancelled" in gone.seen


GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/training"


@pytest.mark.parametrize("named", ["open", GROUP])
def test_where_no_reservation_matches_a_group_or_open_that_is_said(here: Account, held: str, named: str) -> None:
    assert not found(here, reserved(named))
    for spec in (reserved(named, count=9), reserved(named, zone="us-east-1b")):
        finding = found(here, spec)["reservation-room"]
        assert finding.level is Level.WARNING and "free in" in finding.seen


@pytest.fixture
def rehearsed(here: Account) -> Iterator[Any]:
    """Gives the account what a rehearsal's spec names, and nothing of it afterwards."""
    given: list[str] = []

    def give(spec: Spec) -> Spec:
        before = {one["CapacityReservationId"] for one in everything(here)}
        surroundings.give_reservation(spec)
        given.extend({one["CapacityReservationId"] for one in everything(here)} - before)
        return spec

    yield give
    for one in given:
        with suppress(ClientError):  # a block cannot be cancelled
            here.client("ec2").cancel_capacity_reservation(CapacityReservationId=one)


def everything(here: Account) -> list[dict[str, Any]]:
    return list(here.client("ec2").describe_capacity_reservations()["CapacityReservations"])


@pytest.mark.parametrize("named", ["cr-0fedcba9876543210", "open", GROUP])
def test_a_rehearsal_has_the_reservation_that_its_spec_names(here: Account, rehearsed: Any, named: str) -> None:
    where = {"instance_type": "p5en.48xlarge", "zone": "us-east-1c"}
    spec, larger = reserved(named, count=3, **where), reserved(named, count=4, **where)
    assert found(here, spec)
    rehearsed(spec)
    assert not found(here, spec) and found(here, larger)
    before = everything(here)
    rehearsed(spec)
    assert everything(here) == before, "every command of a rehearsal gives it"
    rehearsed(larger)
    assert not found(here, larger)


def test_a_rehearsed_reservation_that_somebody_cancelled_stays_so(here: Account, ec2: Any, rehearsed: Any) -> None:
    spec = rehearsed(reserved("cr-0aaaaaaaaaaaaaaaa"))
    ec2.cancel_capacity_reservation(CapacityReservationId="cr-0aaaaaaaaaaaaaaaa")
    rehearsed(spec)
    assert "never be active" in found(here, spec)["reservation-room"].message


def test_a_rehearsal_has_the_block_that_its_spec_names_begun_and_for_a_day(here: Account, rehearsed: Any) -> None:
    spec = reserved("cr-0bbbbbbbbbbbbbbbb", capacity="capacity-block", block_fee_usd="15978.24")
    with pytest.raises(UserError, match="no such capacity block"):
        blocks.find_block(here, spec)
    rehearsed(spec)
    block, now = blocks.find_block(here, spec), datetime.now(UTC)
    assert block is not None and (block.kind, block.state, block.count) == ("capacity-block", "active", 8)
    blocks.refuse_unfit(block, spec, now, timedelta(hours=20))
    begun, deadline = block_clock.clock_of(here, spec, make_plan(spec, survey(spec)), now)
    assert begun == now and deadline == block.nodes_until, "its clock is the block's"
    assert rehearsed(spec) and blocks.find_block(here, spec) == block


def test_on_aws_and_on_demand_nothing_is_held(here: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(here)
    surroundings.give_reservation(example_spec())
    monkeypatch.setenv("BIVOUAC_SITE", "default")
    target.give_inputs(reserved("cr-0cccccccccccccccc"))
    assert everything(here) == before
    target.give_inputs(reserved("cr-0cccccccccccccccc").model_copy(update={"target": "rehearsal"}))
    assert len(everything(here)) == len(before) + 1


def test_a_zone_that_does_not_sell_a_type_is_refused_before_the_yes(here: Account) -> None:
    for nodes, field in (
        ({"instance_type": "p5en.48xlarge"}, "nodes.instance_type"),
        ({"system_instance_type": "m9.giant"}, "nodes.system_instance_type"),
    ):
        finding = found(here, example_spec(zone="us-east-1b", nodes=nodes))["zone-offers"]
        assert (finding.level, finding.field) == (Level.ERROR, field)
    assert not found(here, example_spec(zone="us-east-1c", nodes={"instance_type": "p5en.48xlarge"}))


def context_of(here: Account, spec: Spec) -> Any:
    plan = make_plan(spec, survey(spec))
    over = datetime.now(UTC) - timedelta(hours=1)  # before it, prepaid nodes stay
    return SimpleNamespace(
        deadline=over, plan=plan, spec=spec, account=here, names=Names(spec), turns=lambda seconds: iter(()),
        state=CampaignState,
    )  # fmt: skip


class NoNode:
    """A node group in which nothing ever came."""

    def launched(self) -> tuple[()]:
        return ()

    def set_desired(self, count: int) -> None:
        assert count == 0


def test_a_reservation_bills_while_no_node_is_there_and_every_sentence_says_so(
    here: Account, ec2: Any, held: str
) -> None:
    context, nobody = context_of(here, reserved(held)), NoNode()
    bill = billing.bill(context)
    assert bill.lines == ((f"8 unused of reservation {held}", Decimal("440.32")),) and not bill.unseen
    cancel = f"`aws ec2 cancel-capacity-reservation --region us-east-1 --capacity-reservation-id {held}`"
    said = bill.sentence("example"), capacity.retreat(context, nobody), bills_on(context) or ""  # type: ignore[arg-type]
    for one in said:
        assert f"reservation {held} still bills" in one and "until you cancel it" in one and cancel in one
        assert "440.32 USD/h" in one and "nothing was paid" not in one
    small = context_of(here, reserved(held, count=2))
    assert billing.bill(small).usd_per_hour == Decimal("110.08"), "other campaigns may wait for the other places"
    ec2.cancel_capacity_reservation(CapacityReservationId=held)
    assert bills_on(context) is None and not billing.bill(context).lines
    assert "nothing was paid" in capacity.retreat(context, nobody)  # type: ignore[arg-type]


@pytest.mark.parametrize("named", ["open", GROUP])
def test_what_a_group_or_open_reservations_bill_is_said_to_be_outside_the_campaign(here: Account, named: str) -> None:
    context = context_of(here, reserved(named))
    for one in (billing.bill(context).sentence("example"), capacity.retreat(context, NoNode())):  # type: ignore[arg-type]
        assert (
            "unused reserved capacity still bills; it is outside of this campaign" in one
            and "nothing was paid" not in one
        )


def test_the_plan_counts_a_reservation_while_it_waits_for_its_nodes() -> None:
    reservation, bought = reserved("cr-0123456789abcdef0"), example_spec(nodes={"count": 8}, preflight={"pilot": False})
    plan, plain = (make_plan(spec, survey(spec)) for spec in (reservation, bought))
    (rest,) = [line for line in plan.cost if line.name == RESERVATION_REST]
    assert rest.usd > 100 and "cr-0123456789abcdef0 bills 440.32" in rest.formula
    assert plan.totals.usd.value == plain.totals.usd.value + rest.usd
    assert plan.totals.usd_per_hour_idle == plain.totals.usd_per_hour_idle, "the steward counts it with the nodes"
