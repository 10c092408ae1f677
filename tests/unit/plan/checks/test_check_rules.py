"""Every rule has a spec that it refuses; the base spec passes them all."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from infra.plan.catalogue import instance_types
from infra.plan.checks import RULES, WORKLOAD_RULES, failed, nccl
from infra.plan.checks.finding import rule_name, rules_of
from infra.plan.facts import Facts
from tests.unit.plan.checks.existing_network import EXISTING_VPC, existing
from tests.unit.plan.checks.refused import (
    PASSED,
    REFUSED,
    Refusal,
    account,
    quota,
    tokens,
)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_a_rule_refuses_with_place_value_and_cure(row: Refusal, findings: Any) -> None:
    seen = [finding for finding in findings(row.changes, row.facts, row.today) if finding.rule == row.rule]
    match = [finding for finding in seen if (finding.level, finding.field) == (row.level, row.field)]
    assert match, f"{row.rule} found {seen}"
    assert match[0].seen and match[0].cure and row.cure in match[0].cure
    assert match[0].line >= 1


@pytest.mark.parametrize("changes", PASSED, ids=str)
def test_a_sound_spec_has_no_finding(changes: dict[str, Any], findings: Any) -> None:
    assert findings(changes) == ()


@pytest.mark.parametrize("egress", ["nat", "endpoints"])
def test_an_existing_network_that_has_all_is_no_finding(egress: str, findings: Any) -> None:
    assert findings({**EXISTING_VPC, "network.egress": egress}, existing()) == ()


@pytest.mark.parametrize("service", ["scheduler", "monitoring"])
def test_an_endpoint_that_a_campaign_can_do_without_is_no_error(service: str, findings: Any) -> None:
    (one,) = findings({**EXISTING_VPC, "network.egress": "endpoints"}, existing(without=service))
    assert (str(one.level), one.seen) == ("warning", f"no endpoint for {service}")


def test_free_addresses_that_just_suffice_are_enough(findings: Any) -> None:
    """Two nodes and a spare of 8, 2 of the file system; a system node and a spare of 20, 6 of the control plane."""
    free = {"gpu": 26, "first": 46, "second": 6}
    assert findings(EXISTING_VPC, existing({at: {"free_addresses": count} for at, count in free.items()})) == ()
    seen = findings(EXISTING_VPC, existing({at: {"free_addresses": count - 1} for at, count in free.items()}))
    assert {one.rule for one in seen} == {"existing-network-room"} and len(seen) == 3
    assert "25 free, 26 wanted" in seen[0].seen


@pytest.mark.parametrize("enough", [25_600, None])
def test_data_that_are_read_four_times_or_cannot_be_weighed_are_no_finding(enough: Any, findings: Any) -> None:
    assert findings(facts=tokens(enough)) == ()


def test_every_rule_has_a_case_that_it_refuses() -> None:
    assert {row.rule for row in REFUSED} | {"lustre-efa"} == {
        rule_name(rule) for rule in RULES if rule not in (*WORKLOAD_RULES, *rules_of("case", nccl))
    }


HOURLY: tuple[dict[str, Any], ...] = (
    {"nodes.capacity": "on-demand"},
    {"nodes.capacity": "spot"},
    {"nodes.capacity": "reservation", "nodes.reservation_id": "cr-0123456789abcdef0"},
)
UNPRICED = [item for item in instance_types() if item.price_usd_per_hour is None]


@pytest.mark.parametrize("how", HOURLY, ids=lambda how: how["nodes.capacity"])
@pytest.mark.parametrize("item", UNPRICED, ids=lambda item: item.name)
def test_a_type_without_a_price_runs_only_with_one_of_the_specs_own(item: Any, how: Any, findings: Any) -> None:
    chosen = {**how, "nodes.instance_type": item.name, "training.global_batch": 64, "money.budget_usd": 5000}

    def of_price(**more: Any) -> list[Any]:
        return [finding for finding in findings(chosen | more) if finding.rule == "known-prices"]

    (refused,) = of_price()
    assert failed((refused,)) and "nodes.usd_per_hour" in refused.cure and item.name in refused.seen
    assert not of_price(**{"nodes.usd_per_hour": "40"})


def test_old_prices_name_the_way_to_new_ones_of_just_what_is_old(findings: Any) -> None:
    def cure(gpus: date, rest: date) -> str | None:
        def dated(facts: Facts) -> Facts:
            offers = tuple(offer.model_copy(update={"as_of": gpus}) for offer in facts.offers)
            prices = facts.prices.model_copy(update={"as_of": rest})
            return facts.model_copy(update={"offers": offers, "prices": prices})

        found = [finding for finding in findings(facts=dated, today=date(2026, 12, 1)) if finding.rule == "price-age"]
        return found[0].cure if found else None

    old, fresh = date(2026, 7, 1), date(2026, 11, 1)
    refresh, by_hand = "`bivouac catalogue refresh --write`", "infra/plan/catalogue/prices.yaml"
    assert cure(fresh, fresh) is None
    for gpus, rest in ((old, fresh), (fresh, old), (old, old)):
        told = cure(gpus, rest) or ""
        assert (refresh in told, by_hand in told) == (gpus is old, rest is old)


def test_every_rule_says_what_it_wants() -> None:
    assert [rule_name(rule) for rule in RULES if not rule.__doc__] == []


def test_no_finding_hides_another(findings: Any) -> None:
    wrong = {
        "nodes.ranks_per_node": 3,
        "training.global_batch": 7,
        "training.model.heads": 7,
        "zone": "eu-west-1a",
        "money.budget_usd": 1,
        "data.source": "/no/such/folder",
        "kubernetes": "1.20",
        "storage.shared.capacity_gib": 1,
        "rehearsal.faults.0.kill_node": 9,
        "recovery.heartbeat_timeout": "2h",
    }
    found = findings(wrong)
    assert {finding.field.partition(".")[0] for finding in found} >= {path.partition(".")[0] for path in wrong}
    assert [finding.line for finding in found] == sorted(finding.line for finding in found)


def test_findings_point_at_the_line_of_the_field(findings: Any, spec_file: Any) -> None:
    (finding,) = findings({"training.global_batch": 12})
    text = finding.file.read_text().splitlines()
    assert text[finding.line - 1].strip() == "global_batch: 12"


def test_unknown_accounts_and_quotas_are_no_finding(findings: Any) -> None:
    assert findings(facts=account("123456789012")) == ()
    assert findings(facts=quota(32)) == ()
