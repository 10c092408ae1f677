"""Chances and dollars of the plan, against figures counted on paper."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from infra.plan.estimates import cost
from infra.plan.estimates.campaign import estimate
from infra.plan.estimates.figure import figure, round_to
from infra.plan.estimates.losses import chance_of_more, limit_for
from infra.plan.facts import Facts
from infra.plan.survey import survey

# Chance


def test_chances_on_paper() -> None:
    # mean 0.5 within a campaign of 10 h: e^-0.5 x 0.5 = 0.303265, x 2 / (2 - 0.5)
    assert chance_of_more(0, 0.05, 24, 10) == pytest.approx(0.404354, rel=1e-5)
    # e^-0.5 x 0.5^3 / 6 = 0.0126361, x 4 / 3.5
    assert chance_of_more(2, 0.05, 24, 10) == pytest.approx(0.0144412, rel=1e-5)
    # mean 0.24 a day, 0.76 after the first: three or more 0.0018124 x 4 / 3.76 = 0.0019281, two or more
    # 0.0226551 x 3 / 2.76 = 0.0246251, x 0.76
    assert chance_of_more(2, 0.01, 24, 100) == pytest.approx(0.0206432, rel=1e-4)
    # three: 0.00010874 x 5 / 4.76 + 0.76 x 0.0019281
    assert chance_of_more(3, 0.01, 24, 100) == pytest.approx(0.0015796, rel=1e-4)
    assert [limit_for(chance, 0.01, 24, 100) for chance in (0.0206, 0.0207, 0.00157, 0.00159)] == [3, 2, 4, 3]


def test_what_is_expected_anyway_is_certain_and_what_never_happens_has_no_chance() -> None:
    assert chance_of_more(0, 1.0, 24, 100) == chance_of_more(23, 1.0, 24, 24) == 1.0
    assert chance_of_more(0, 0.0, 24, 100) == 0.0 and limit_for(0.01, 0.0, 24, 100) == 0
    assert chance_of_more(1, 0.3, 1, 10_000) == 1.0, "never more than certain"
    # one is expected in the window, a tenth of one after it: e^-1 / 2 = 0.183940, x 3 / (3 - 1), and 0.1 x 1
    assert chance_of_more(1, 1.0, 1, 1.1) == pytest.approx(0.375910, rel=1e-5)
    just = chance_of_more(2, 0.01, 24, 100)
    assert limit_for(just, 0.01, 24, 100) == 2, "at most this probability"
    for per_hour in (1e3, 1e12):
        assert chance_of_more(limit_for(0.01, per_hour, 24, 504), per_hour, 24, 504) <= 0.01


# Dollars


def with_prices(facts: Facts, **prices: Any) -> Facts:
    return facts.model_copy(update={"prices": facts.prices.model_copy(update=prices)})


def lines_of(spec: Any, facts: Facts) -> dict[str, Any]:
    return {line.name: line for line in estimate(spec, facts, 2).lines}


def test_what_has_no_price_says_so_and_the_rest_is_counted(spec_file: Callable[..., Any]) -> None:
    spec = spec_file({}).spec
    facts = survey(spec)
    lines = lines_of(spec, with_prices(facts, lustre_usd_per_gb_month={}))
    lustre = lines.pop("FSx for Lustre")
    assert not lustre.priced and lustre.usd == 0 and "no price known" in lustre.formula
    assert all(line.priced and "no price" not in line.formula for line in lines.values())
    unsold = lines_of(spec, facts.model_copy(update={"offers": ()}))["GPU nodes"]
    assert (unsold.priced, unsold.usd, unsold.gpu) == (False, 0, True) and "no price known" in unsold.formula


def test_a_file_system_costs_by_its_kind_and_throughput(spec_file: Callable[..., Any]) -> None:
    own = {"SCRATCH_2": {200: Decimal("0.5")}, "PERSISTENT_2": {125: Decimal(1), 1000: Decimal(2)}}
    for shared, price in (
        ({"deployment": "SCRATCH_2", "throughput_mbs_per_tib": None}, Decimal("0.5")),
        ({"throughput_mbs_per_tib": 125}, 1),
        ({"throughput_mbs_per_tib": 1000}, 2),
        ({"throughput_mbs_per_tib": 500}, None),
        ({"throughput_mbs_per_tib": None}, None),
    ):
        spec = spec_file({"storage.shared": {"capacity_gib": 7300, **shared}}).spec
        facts = with_prices(survey(spec), lustre_usd_per_gb_month=own)
        assert cost.lustre_usd_per_gb_month(spec, facts.prices) == price
        # 7,300 GiB at so much a month of 730 h
        assert lines_of(spec, facts)["FSx for Lustre"].usd_per_hour == 10 * (price or 0)


def test_a_second_system_node_costs_twice_and_is_said_to_stand_by(spec_file: Callable[..., Any]) -> None:
    for count, words in ((1, "until a new node is up"), (2, "within half a minute")):
        spec = spec_file({"nodes.system_count": count}).spec
        line = lines_of(spec, survey(spec))["system node"]
        assert line.usd_per_hour == count * Decimal("0.1008") and words in line.formula


def a_line(name: str, per_hour: str, usd: str, **more: Any) -> cost.CostLine:
    rest = {"hours": Decimal(1), "formula": "", **more}
    return cost.CostLine(name=name, usd_per_hour=Decimal(per_hour), usd=Decimal(usd), **rest)


def test_dollars_at_the_deadline_on_paper(spec_file: Callable[..., Any]) -> None:
    spec = spec_file({"money.deadline": "10h"}).spec
    lines = (
        a_line("system node", "0.5", "1.25"), a_line("builder", "0.25", "0.13"),
        a_line("GPU nodes", "8", "30", gpu=True), a_line("S3 archive", "0", "2.50"),
    )  # fmt: skip
    assert cost.rate_usd_per_hour(lines, gpu=True) == Decimal("8.5")
    assert cost.rate_usd_per_hour(lines, gpu=False) == Decimal("0.5")
    assert cost.total_usd(lines) == Decimal("33.88")
    # 10 x 8.5, 0.5 h of teardown x 0.5, the builder's 0.13 and the archive's 2.50
    assert cost.usd_at_deadline(spec, lines, Decimal("0.5")) == Decimal("87.88")
    # what a reservation bills beside the nodes is within ten hours of theirs
    waits = a_line(cost.RESERVATION_REST, "0", "50")
    assert cost.usd_at_deadline(spec, (*lines, waits), Decimal("0.5")) == Decimal("87.88")
    # of a block of 100 USD the nodes are counted for 10 x 8: 20 are left; of one of 70 nothing
    for fee, rest, wanted in (("100", "70", "107.88"), ("70", "40", "87.88")):
        block = a_line(cost.BLOCK_REST, "0", rest, upfront_usd=Decimal(fee))
        assert cost.usd_at_deadline(spec, (block, *lines), Decimal("0.5")) == Decimal(wanted)


def test_of_what_was_paid_at_once_the_nodes_hours_are_taken() -> None:
    block, none = a_line("x", "0", "0", upfront_usd=Decimal(100)), a_line("x", "0", "0")
    assert [cost.unused_usd(block, Decimal(usd)) for usd in (0, 99, 100, 101)] == [100, 1, 0, 0]
    assert cost.unused_usd(none, Decimal(0)) == 0


def test_a_tier_is_found_by_its_name(spec_file: Callable[..., Any]) -> None:
    spec = spec_file({}).spec
    whole = estimate(spec, survey(spec), 2)
    found = [whole.tier(name) for name in ("shared", "archive", "local", "tape")]
    assert [tier and tier.name for tier in found] == ["shared", "archive", "local", None]


def test_figures_are_rounded_half_up_and_plain() -> None:
    assert [str(round_to(value, 2)) for value in (0.125, 0.124, 100, Decimal("1.50"), 1e6, -0.125)] == [
        "0.13", "0.12", "100", "1.5", "1000000", "-0.13",
    ]  # fmt: skip
    assert str(round_to(0.5, 0)) == "1" and str(figure("x", 1.23456, "s", "f").value) == "1.235"
    assert str(figure("x", 1.23456, "s", "f", digits=1).value) == "1.2"
    assert str(cost.cents(Decimal("2.345"))) == "2.35"
