"""Where each rule about nodes and how they are bought begins to speak: what just passes, what just does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra.plan.catalogue.quotas import Quota
from infra.plan.checks import capacity, nodes
from infra.plan.checks.finding import Case
from infra.plan.facts import Facts, QuotaRoom
from tests.unit.plan.checks.edges import cases, environment, levels, of, of_instance, told, unknown
from tests.unit.plan.checks.refused import P5EN_BLOCK


@pytest.fixture
def case(spec_file: Callable[..., Any]) -> Callable[..., Case]:
    return cases(spec_file)


@pytest.mark.parametrize(("used", "wanted", "needed"), [(3, 2, None), (4, 2, 6), (5, 0, None), (0, 6, 6)])
def test_a_quota_may_be_used_to_its_last_place(
    case: Callable[..., Case], used: int, wanted: int, needed: int | None
) -> None:
    room = QuotaRoom(quota=Quota(code="L-1", name="a quota"), field="network", allowed=5, used=used, wanted=wanted)
    drafts = list(capacity.service_quotas(case(facts=of(quotas=(room,)))))
    assert [draft.cure.startswith(f"ask for {needed} ") for draft in drafts] == ([True] if needed else [])


def test_the_vcpus_of_all_nodes_fit_the_quota(case: Callable[..., Case]) -> None:
    def left(vcpus: int | None) -> Callable[[Facts], Facts]:
        def bend(facts: Facts) -> Facts:
            offers = tuple(offer.model_copy(update={"quota_vcpus": vcpus}) for offer in facts.offers)
            return facts.model_copy(update={"offers": offers})

        return bend

    rule = nodes.gpu_node_quota  # two p5.4xlarge of 16 vCPUs
    assert levels(rule, case(facts=left(32))) == levels(rule, case(facts=left(None))) == []
    (short,) = rule(case(facts=left(31)))
    assert short.seen.startswith("32 vCPUs wanted, 31 left") and "ec2 L-" in short.cure
    assert levels(rule, case({"nodes.count": 3, "training.global_batch": 12}, facts=left(47))) == ["error"]
    assert levels(rule, case(facts=lambda facts: unknown(left(0)(facts)))) == []
    assert levels(rule, case(facts=of(offers=()))) == []


def test_the_zone_sells_both_types_of_nodes(case: Callable[..., Case]) -> None:
    def seen(**sold: tuple[str, ...]) -> list[tuple[str, str]]:
        named = {name.replace("_", "."): zones for name, zones in sold.items()}
        return [(offer.place, offer.cure) for offer in capacity.zone_offers(case(facts=of(sold=named)))]

    assert seen(p5_4xlarge=("us-east-1c", "us-east-1a"), m7i_large=("us-east-1a",)) == seen() == []
    ((field, cure),) = seen(p5_4xlarge=("us-east-1b", "us-east-1c"))
    assert field == "nodes.instance_type" and "us-east-1b, us-east-1c" in cure
    assert [field for field, _ in seen(m7i_large=())] == ["nodes.system_instance_type"]


def test_ranks_are_as_many_as_accelerators(case: Callable[..., Case]) -> None:
    rule, eight = nodes.ranks_per_accelerator, {"nodes.instance_type": "p5.48xlarge"}
    for ranks, wanted in ((7, ["warning"]), (8, []), (9, ["error"]), (None, [])):
        assert levels(rule, case({**eight, "nodes.ranks_per_node": ranks})) == wanted
    assert levels(rule, case({"nodes.ranks_per_node": 3}, facts=unknown)) == []


def test_a_type_without_a_price_by_the_hour_is_bought_as_a_block(case: Callable[..., Case]) -> None:
    rule = nodes.on_demand_price
    held = {"nodes.capacity": "reservation", "nodes.reservation_id": "open"}
    for price, block, changes, wanted in (
        (None, True, {}, ["warning"]), (None, True, {"nodes.capacity": "spot"}, ["warning"]), (None, True, held, []),
        (None, False, {}, []), (5, True, {}, []),
    ):  # fmt: skip

        def bend(facts: Facts, price: Any = price, block: bool = block) -> Facts:
            assert facts.instance is not None
            sale = facts.instance.price.model_copy(update={"usd_per_hour": price})
            return of_instance(price=sale, capacity_block=block, price_usd_per_hour=price)(facts)

        made = case(changes, facts=bend)
        if made.facts.instance is not None and made.facts.instance.price_usd_per_hour == price:
            assert levels(rule, made) == wanted
    assert levels(rule, case(facts=unknown)) == []


def test_the_floor_of_the_bandwidth_is_a_share_of_something_or_a_figure(case: Callable[..., Case]) -> None:
    rule, share, own = (
        nodes.one_bandwidth_floor, {"preflight.bus_bandwidth_share": 0.9}, {"preflight.bus_bandwidth_gb_s": 5}
    )  # fmt: skip
    for changes, floor, fields in (
        ({}, 0.0, []), (own, 0.0, []), (share, 10.0, []), (share, 0.0, ["bus_bandwidth_share"]),
        ({**share, **own}, 0.0, ["bus_bandwidth_gb_s"]), ({**share, **own}, 10.0, ["bus_bandwidth_gb_s"]),
    ):  # fmt: skip
        assert [field for _, field in told(rule, case(changes, facts=of(floor_gb_s=floor)))] == fields
    assert told(rule, case({**share, **own}, facts=unknown)) == []


def test_what_the_catalogue_lacks_is_told_where_it_is_missed(case: Callable[..., Case]) -> None:
    def lacks(changes: dict[str, Any], peak: float | None, measured: float | None, hardware: bool = True) -> list[str]:
        def bend(facts: Facts) -> Facts:
            facts = of(all_reduce_gb_s=measured)(environment(hardware=hardware)(facts))
            return of_instance(peak_bf16_tflops=peak)(facts)

        return [draft.seen for draft in capacity.absent_figures(case(changes, facts=bend))]

    one = {"nodes.count": 1, "training.global_batch": 4}
    assert lacks({}, 1.0, 2.0) == lacks(one, 1.0, None) == lacks({}, None, None, hardware=False) == []
    assert lacks({"preflight.bus_bandwidth_gb_s": 5}, 1.0, None) == []
    (peak,), (reduce,), (both,) = lacks({}, None, 2.0), lacks({}, 1.0, None), lacks({}, None, None)
    assert "FLOP/s" in peak and "all-reduce" not in peak and "FLOP/s" not in reduce and "all-reduce" in reduce
    assert "FLOP/s" in both and "all-reduce" in both
    assert told(capacity.absent_figures, case(facts=lambda facts: unknown(environment(hardware=True)(facts)))) == []


def test_a_blocks_fee_belongs_to_a_block(case: Callable[..., Case]) -> None:
    rule, fee, price = capacity.block_fee, "nodes.block_fee_usd", "nodes.usd_per_hour"
    block = {name: value for name, value in P5EN_BLOCK.items() if name not in (fee, price)}
    for changes, wanted in (
        ({}, []), ({fee: 5}, ["error"]), (block, []), ({**block, price: "4"}, ["warning"]), ({**block, fee: 5}, []),
        ({**block, fee: 5, price: "4"}, []), ({price: "4"}, []),
    ):  # fmt: skip
        assert levels(rule, case(changes)) == wanted
