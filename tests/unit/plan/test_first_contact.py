"""The first dollar: the shipped `first-contact.yaml` costs what its page promises."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from infra.cli.prepare.checked import checked
from infra.plan.catalogue import instance_types
from infra.plan.checks import Level
from infra.plan.estimates.clock import UNTIL_ARCHIVED, longest_seconds
from infra.plan.plan import Plan, make_plan
from infra.plan.survey import survey
from infra.spec.campaign import Spec, load
from tests.root import ROOT

SPEC = ROOT / "infra/campaigns/first-contact.yaml"
MOST_USD = 15


@pytest.fixture(scope="module")
def spec() -> Spec:
    return load(SPEC).spec


@pytest.fixture
def plan(spec: Spec) -> Plan:
    return make_plan(spec, survey(spec))


def test_it_stays_below_fifteen_dollars_also_when_the_deadline_ends_it(spec: Spec, plan: Plan) -> None:
    # 2.5 h of two nodes, system node, control plane, NAT gateway with its address, and 1200 GB of scratch Lustre.
    by_hour = 2 * 2.0144 + 0.1008 + 0.10 + 0.045 + 0.005 + 1200 * 0.140 / 730
    most = 2.5 * by_hour + (by_hour - 2 * 2.0144) / 3 + 0.05 + 6 * 0.045 + 0.03
    assert float(plan.totals.usd_at_deadline.value) == pytest.approx(most, abs=0.05)
    assert plan.totals.usd.value < plan.totals.usd_at_deadline.value < spec.money.budget_usd < MOST_USD
    assert not plan.unpriced


def test_it_trains_twenty_minutes_within_a_deadline_that_holds_if_aws_takes_its_longest(spec: Spec, plan: Plan) -> None:
    assert plan.figure("training time").value == Decimal(20 * 60)
    clock = timedelta(seconds=float(plan.totals.gpu_clock.value))
    assert clock + timedelta(minutes=40) < spec.money.deadline <= timedelta(hours=2.5), "time to lose a node and wait"
    longest = timedelta(seconds=float(longest_seconds(plan.clock, *UNTIL_ARCHIVED)))
    assert clock + timedelta(minutes=20) < longest < spec.money.deadline


def test_its_nodes_are_the_cheapest_of_the_catalogue_with_efa(spec: Spec) -> None:
    priced = {
        one.name: one.price_usd_per_hour for one in instance_types() if one.price_usd_per_hour and one.efa_interfaces
    }
    assert min(priced, key=lambda name: priced[name] or 0) == spec.nodes.instance_type and spec.nodes.count == 2


def test_whoever_copies_it_has_placeholders_to_replace_and_passes_every_rule(tmp_path: Path) -> None:
    assert not [finding for finding in checked(SPEC).findings if finding.level is Level.ERROR]
    document = yaml.safe_load(SPEC.read_text())
    assert document["account"] == "111122223333" and document["network"]["api_allowed_cidrs"] == ["203.0.113.7/32"]
    assert document["money"]["alarm_email"].endswith("@example.com")
    del document["network"]
    path = tmp_path / "open.yaml"
    path.write_text(yaml.safe_dump(document))
    findings = [finding for finding in checked(path).findings if finding.level is Level.ERROR]
    assert [one.field for one in findings] == ["network.api_allowed_cidrs"] and "0.0.0.0/0" in findings[0].cure
