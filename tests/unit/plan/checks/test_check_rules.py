"""Every rule has a spec that it refuses; the base spec passes them all."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from infra.plan.catalogue import instance_types
from infra.plan.checks import RULES, WORKLOAD_RULES, failed, nccl
from infra.plan.checks.finding import rule_name, rules_of
from infra.plan.facts import Facts
from infra.spec.campaign import MAX_NAME
from tests.unit.plan.checks.refused import (
    DRIVER,
    P5EN_BLOCK,
    PERSISTENT_EFA,
    PRIVATE,
    Row,
    account,
    quota,
    tokens,
)
from tests.unit.plan.checks.refused_networks import FIRST, GPU, NETWORKS, SECOND, SOUND, existing
from tests.unit.plan.checks.refused_places import PLACES
from tests.unit.plan.checks.refused_plans import PLANS

REFUSED = PLACES + NETWORKS + PLANS
PASSED: tuple[dict[str, Any], ...] = (
    {},
    {"campaign": "c" * MAX_NAME},
    {"second_zone": "us-east-1f"},
    {"network.cidr": "192.168.16.0/20"},
    P5EN_BLOCK,
    {**P5EN_BLOCK, "nodes.block_end": "2026-08-08T11:30:00Z"},
    {"nodes.capacity": "reservation", "nodes.reservation_id": "open"},
    {
        "nodes.capacity": "reservation",
        "nodes.reservation_id": "arn:aws:resource-groups:us-east-1:123456789012:group/training",
    },
    {**PERSISTENT_EFA, "storage.shared.capacity_gib": 9600},
    {"storage.shared.deployment": "SCRATCH_2"},
    {"storage.shared.deployment": "SCRATCH_2", "storage.shared.throughput_mbs_per_tib": None},
    {"storage.shared.capacity_gib": 2400},
    {"storage.shared": "none"},
    {"storage.shared": "none", "encryption.customer_key": True, "network.egress": "endpoints"},
    {"network.egress": "endpoints"},
    {**PRIVATE, "network.driver_vpc": DRIVER},
    {"network.api_allowed_cidrs": ["203.0.113.0/24"]},
    {"encryption.customer_key": True},
    {"encryption.customer_key": True, "encryption.key_arn": "arn:aws:kms:us-east-1:123456789012:key/1-2"},
    {"storage.shared.metadata_iops": "automatic"},
    {"storage.archive": {"storage_class": "GLACIER_IR", "move_after": "1d"}},
    {"money.alarm_email": None, "money.alarm_topic_arn": "arn:aws:sns:us-east-1:123456789012:pager"},
    {"checkpoint": None, "rehearsal": None},
    {"access": [{"principal": "arn:aws:iam::123456789012:user/ada", "role": "operator"}]},
    {
        "notify.topic": "arn:aws:sns:us-east-1:123456789012:bivouac_pager",
        "notify.webhook": {"parameter": "/bivouac_webhook/team"},
    },
    {"notify.email": ["ada@example.com"], "notify.on": ["held"]},
    {"rehearsal.faults": []},
    {"preflight.profile": None},
)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_a_rule_refuses_with_place_value_and_cure(row: Row, findings: Any) -> None:
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
    assert findings({**SOUND, "network.egress": egress}, existing()) == ()


def test_free_addresses_that_just_suffice_are_enough(findings: Any) -> None:
    """Two nodes and a spare of 8, 2 of the file system; a system node and a spare of 20, 6 of the control plane."""
    free = {GPU: 26, FIRST: 46, SECOND: 6}
    assert findings(SOUND, existing({one: {"free_addresses": count} for one, count in free.items()})) == ()
    seen = findings(SOUND, existing({one: {"free_addresses": count - 1} for one, count in free.items()}))
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
        return [one for one in findings(chosen | more) if one.rule == "known-prices"]

    (refused,) = of_price()
    assert failed((refused,)) and "nodes.usd_per_hour" in refused.cure and item.name in refused.seen
    assert not of_price(**{"nodes.usd_per_hour": "40"})


def test_old_prices_name_the_way_to_new_ones_of_just_what_is_old(findings: Any) -> None:
    def cure(gpus: date, rest: date) -> str | None:
        def dated(facts: Facts) -> Facts:
            offers = tuple(offer.model_copy(update={"as_of": gpus}) for offer in facts.offers)
            prices = facts.prices.model_copy(update={"as_of": rest})
            return facts.model_copy(update={"offers": offers, "prices": prices})

        found = [one for one in findings(facts=dated, today=date(2026, 12, 1)) if one.rule == "price-age"]
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
