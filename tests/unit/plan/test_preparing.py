"""Time and cost of data that the cluster prepares, worked out on paper."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from infra.plan.estimates.preparing import vcpus
from infra.plan.plan import make_plan
from infra.plan.survey import survey

TEXT = {
    "data.source": "s3://texts/web",
    "data.prepare.where": "cluster",
    "data.prepare.nodes": 5,
    "data.prepare.text_gib": 1000,
    "money.budget_usd": 1000,
}


@pytest.mark.parametrize(
    ("name", "count"),
    [("m7i.large", 2), ("c7g.xlarge", 4), ("m7i.4xlarge", 16), ("r7iz.32xlarge", 128), ("m7i.metal-24xl", None)],
)
def test_the_processors_of_a_type_follow_from_its_size(name: str, count: int | None) -> None:
    assert vcpus(name) == count


def test_a_terabyte_on_five_nodes_counted_on_paper(spec_file: Callable[..., Any]) -> None:
    spec = spec_file(TEXT).spec
    plan = make_plan(spec, survey(spec))
    plain = spec_file({"money.budget_usd": 1000}).spec
    without = make_plan(plain, survey(plain))
    # 1,073,741,824,000 B / (5 x 16 x 0.8 MB/s) = 16,777.2 s; 360 s to join; 300 s to link
    (provision,), (before,) = ([one for one in each.clock if one.stage == "provision"] for each in (plan, without))
    assert provision.seconds - before.seconds == 17_137 + 300
    assert "(5 nodes x 16 vCPUs x 0.8 MB/s) = 16777 s" in provision.formula
    (line,) = [one for one in plan.cost if one.name == "data nodes"]
    # 4.7603 h x 5 x 0.8064 USD
    assert (line.hours, line.usd_per_hour, line.usd) == (Decimal("4.7603"), Decimal("4.032"), Decimal("19.19"))
    assert plan.totals.usd_per_hour.value == without.totals.usd_per_hour.value, "they have gone by then"
    assert not any(one.name == "data nodes" for one in without.cost)


def test_of_text_whose_size_nobody_knows_the_plan_counts_the_start_and_says_so(spec_file: Callable[..., Any]) -> None:
    spec = spec_file({**TEXT, "data.prepare.text_gib": None}).spec
    (line,) = [one for one in make_plan(spec, survey(spec)).cost if one.name == "data nodes"]
    assert line.hours == Decimal("0.1") and "size of the text unknown" in line.formula


def test_a_type_without_a_price_is_told(spec_file: Callable[..., Any]) -> None:
    spec = spec_file({**TEXT, "data.prepare.instance_type": "m99.4xlarge"}).spec
    assert "data nodes" in make_plan(spec, survey(spec)).unpriced
