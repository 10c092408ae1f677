"""How soon a steward is back when its node dies: what leaves a dead node, who stands by, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from infra.campaign.launch import _deployment
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.spec.campaign import SpecFile
from tests.unit.steward.steward_story import config


def deployment(count: int) -> dict[str, Any]:
    made = config()
    nodes = made.spec.nodes.model_copy(update={"system_count": count})
    spec = made.spec.model_copy(update={"nodes": nodes})
    return dict(_deployment(made.model_copy(update={"spec": spec}))["spec"])


@pytest.mark.parametrize("count", [1, 2])
def test_a_steward_leaves_a_dead_node_within_seconds_of_kubernetes_calling_it_so(count: int) -> None:
    tolerations = deployment(count)["template"]["spec"]["tolerations"]
    tolerated = {row["key"]: row["tolerationSeconds"] for row in tolerations if row["effect"] == "NoExecute"}
    assert tolerated.keys() == {"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"}
    assert all(0 <= seconds <= 10 for seconds in tolerated.values()), "300 where nothing is said"


def test_a_second_steward_stands_by_on_another_node_and_only_where_there_is_one() -> None:
    one, two = deployment(1), deployment(2)
    assert (one["replicas"], two["replicas"]) == (1, 2)
    assert "topologySpreadConstraints" not in one["template"]["spec"]
    (spread,) = two["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname" and spread["maxSkew"] == 1
    assert spread["whenUnsatisfiable"] == "DoNotSchedule"
    assert spread["labelSelector"]["matchLabels"].items() <= two["template"]["metadata"]["labels"].items()


def test_the_plan_prices_the_second_system_node_and_says_what_one_alone_means(
    spec_file: Callable[..., SpecFile],
) -> None:
    def line(count: int) -> Any:
        spec = spec_file({"nodes.system_count": count, "nodes.system_instance_type": "m7i.large"}).spec
        plan = make_plan(spec, survey(spec))
        return next(one for one in plan.cost if one.name == "system node"), plan

    (alone, plan), (both, dearer) = line(1), line(2)
    assert both.usd_per_hour == 2 * alone.usd_per_hour > 0
    assert both.formula.startswith("2 x m7i.large") and "within half a minute" in both.formula
    assert alone.formula.startswith("1 x m7i.large") and "system_count: 2" in alone.formula
    more = Decimal(str(dearer.totals.usd_per_hour_idle.value)) - Decimal(str(plan.totals.usd_per_hour_idle.value))
    assert more == pytest.approx(alone.usd_per_hour, abs=Decimal("0.0001"))
