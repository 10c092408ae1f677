"""Where each rule about money and time begins to speak: the last value that passes, the first that does not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest

from infra.plan.checks import capacity, money
from infra.plan.checks.finding import Case
from infra.plan.facts import Facts
from tests.tables import Table
from tests.unit.plan.checks.edges import Told, cases, estimated, of_instance, taking, told, unknown

TABLE = Table(__file__)


@pytest.fixture
def case(spec_file: Callable[..., Any]) -> Callable[..., Case]:
    return cases(spec_file)


# Money; the base spec has a budget of 60 USD and a deadline of 4 h


def test_a_plan_may_cost_its_whole_budget_and_not_a_cent_more(case: Callable[..., Case]) -> None:
    rule = money.cost_within_budget
    assert told(rule, case(estimate=estimated(usd="60.00"))) == []
    assert told(rule, case(estimate=estimated(usd="60.01"))) == [("error", "budget_usd")]
    assert told(rule, case(facts=unknown)) == []


def test_a_deadline_that_costs_more_than_the_budget_is_told_where_the_plan_is_within_it(
    case: Callable[..., Case],
) -> None:
    rule = money.cost_at_deadline
    for usd, at_deadline, wanted in (
        ("10", "60", []), ("10", "60.01", [("warning", "deadline")]), ("60", "61", [("warning", "deadline")]),
        ("60.01", "61", []),
    ):  # fmt: skip
        assert told(rule, case(estimate=estimated(usd=usd, usd_at_deadline=at_deadline))) == wanted
    assert told(rule, case(facts=unknown)) == []


def test_a_deadline_leaves_a_tenth_to_spare(case: Callable[..., Case]) -> None:
    rule = money.deadline_margin
    # 4 h = 14,400 s; 14,400 / 1.1 = 13,090.9
    for seconds, wanted, cure in (
        (13_090, [], ""),
        (13_091, [("warning", "deadline")], "5h"),  # 1.25 x 13,091 = 4.55 h
        (14_400, [("warning", "deadline")], "5h"),  # 1.25 x 4 h
        (14_401, [("error", "deadline")], "6h"),  # a second above 5 h
    ):
        assert told(rule, case(estimate=taking(seconds))) == wanted
        assert [cure in draft.cure for draft in rule(case(estimate=taking(seconds)))] == [True] * len(wanted)
    # 13,090 + 1,310 = 4 h to the second, if AWS takes its longest
    assert told(rule, case(estimate=taking(13_090, 1_310))) == []
    (late,) = rule(case(estimate=taking(13_090, 1_311)))
    assert late.level == "warning" and "5h or more" in late.cure and "3h38m10s planned, 4h1s at most" in late.seen
    (never,) = rule(case(estimate=taking(14_401, 90_000)))
    assert never.level == "error" and "write 1d6h or more" in never.cure
    # a tenth to the second: 10 h of 11
    assert told(rule, case({"money.deadline": "11h"}, taking(36_000))) == []
    assert told(rule, case(facts=unknown)) == []


def test_what_has_no_price_is_an_error_only_for_nodes_that_nobody_paid_for(case: Callable[..., Case]) -> None:
    def line(name: str, priced: bool = False) -> Any:
        return SimpleNamespace(name=name, priced=priced, gpu=name == "GPU nodes", formula="f")

    names = ("EKS control plane", "GPU nodes", "FSx for Lustre", "system node", "builder")
    block = {"nodes.capacity": "capacity-block", "nodes.reservation_id": "cr-0123456789abcdef0"}
    rest = [("warning", "shared"), *[("warning", "system_instance_type")] * 2]
    guess = estimated(lines=(line(names[0], priced=True), *map(line, names[1:])))
    for changes, nodes in (
        ({}, ("error", "instance_type")),
        ({"nodes.block_fee_usd": 100}, ("error", "instance_type")),
        (block, ("error", "instance_type")),
        ({**block, "nodes.block_fee_usd": 100}, ("warning", "instance_type")),
    ):
        drafts = list(money.known_prices(case(changes, guess)))
        assert [(draft.level.value, draft.place.rpartition(".")[2]) for draft in drafts] == [nodes, *rest]
        assert ["usd_per_hour" in draft.cure for draft in drafts] == [True, False, False, False]
    assert told(money.known_prices, case(facts=unknown)) == []


def test_prices_are_old_after_90_days_and_the_oldest_is_told(case: Callable[..., Case]) -> None:
    def dated(*gpus: date, rest: date) -> Callable[[Facts], Facts]:
        def bend(facts: Facts) -> Facts:
            (offer, *_) = facts.offers
            offers = tuple(offer.model_copy(update={"as_of": day}) for day in gpus)
            return facts.model_copy(
                update={"offers": offers, "prices": facts.prices.model_copy(update={"as_of": rest})}
            )

        return bend

    rule, new = money.price_age, date(2026, 7, 30)
    # 90 days before 1 August are 3 May
    for gpus, rest, seen in (
        ((date(2026, 5, 3), new), date(2026, 5, 3), None),
        ((new, date(2026, 5, 2)), new, "as of 2026-05-02, 91 days"),
        ((new,), date(2026, 5, 1), "as of 2026-05-01, 92 days"),
        ((date(2026, 5, 1),), date(2026, 5, 2), "as of 2026-05-01, 92 days"),
        ((), new, None),
    ):
        drafts = list(rule(case(facts=dated(*gpus, rest=rest))))
        assert [draft.seen for draft in drafts] == ([seen] if seen else [])


def test_prices_of_another_region_are_named_by_what_they_are_of(case: Callable[..., Case]) -> None:
    def foreign(changes: dict[str, Any], region: str | None) -> list[str]:
        def bend(facts: Facts) -> Facts:
            assert facts.instance is not None
            price = facts.instance.price.model_copy(update={"region": region})
            return of_instance(price=price)(facts)

        return [draft.message for draft in money.price_region(case(changes, facts=bend))]

    europe = {"region": "eu-west-1", "zone": "eu-west-1a"}
    assert foreign({}, None) == foreign({}, "us-east-1") == []
    (both,), (rest,) = foreign(europe, None), foreign(europe, "eu-west-1")
    assert "GPU nodes are those of us-east-1" in both and "the rest are those of us-east-1" in both
    assert "GPU nodes" not in rest and "the rest are those of us-east-1" in rest
    (nodes,) = foreign({}, "eu-west-1")
    assert "GPU nodes are those of eu-west-1" in nodes and "the rest" not in nodes
    (own,) = foreign({**europe, "nodes.usd_per_hour": "5"}, None)
    assert "GPU nodes" not in own
    assert told(money.price_region, case(facts=unknown)) == []


@pytest.mark.parametrize(
    ("address", "sound"),
    [
        ("a@b.c", True), ("first.last@mail.example.com", True), ("a@b", False), ("@b.c", False), ("a@b@c.d", False),
        ("a.b@c", False), ("a.b", False), ("", False),
    ],
)  # fmt: skip
def test_an_alarm_goes_to_an_address(case: Callable[..., Case], address: str, sound: bool) -> None:
    topic = {"money.alarm_topic_arn": "arn:aws:sns:us-east-1:123456789012:pager"}
    for more in ({}, topic):
        found = told(money.budget_alarm, case({"money.alarm_email": address, **more}))
        assert found == ([] if sound else [("error", "alarm_email")])


@TABLE.cases
def test_a_campaign_over_the_new_year_is_told(
    case: Callable[..., Case], today: date, deadline: str, block_end: str | None, new_year: bool
) -> None:
    changes = {"money.deadline": deadline} | ({"nodes.block_end": block_end} if block_end else {})
    found = told(money.budget_year, case(changes, today=today))
    assert found == ([("info", "deadline")] if new_year else [])


# A block: 10:00, less 40 minutes, from midnight: 33,600 s


@pytest.mark.parametrize(("seconds", "wanted"), [(33_600, []), (33_601, [("error", "block_end")])])
def test_a_block_leaves_room_until_forty_minutes_before_its_end(
    case: Callable[..., Case], seconds: int, wanted: Told
) -> None:
    rule = capacity.block_end
    block = {"nodes.capacity": "capacity-block", "nodes.reservation_id": "cr-0123456789abcdef0"}
    block["nodes.block_end"] = "2026-08-01T10:00:00Z"
    assert told(rule, case(block, taking(seconds))) == wanted
    assert told(rule, case({"nodes.block_end": "2026-08-01T10:00:00Z"}, taking(seconds))) == [], "no block"
    assert told(rule, case({**block, "nodes.block_end": None}, taking(seconds))) == []
    assert told(rule, case(block, facts=unknown)) == []
    (late,) = rule(case(block, taking(seconds), today=date(2026, 8, 2)))
    assert "0s left" in late.seen or ", 0 left" in late.seen or " 0m left" in late.seen
