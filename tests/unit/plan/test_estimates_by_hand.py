"""Sizes, rates, chances and dollars, each worked out on paper for numbers small enough to follow."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

import pytest

from infra.plan.estimates import cost, sizing, storage, work
from infra.plan.estimates.campaign import estimate
from infra.plan.estimates.clock import StageTime, clock, gang_seconds, longest_seconds, seconds
from infra.plan.estimates.figure import figure, round_to
from infra.plan.estimates.losses import chance_of_more, limit_for
from infra.plan.estimates.saving import Saving, saving
from infra.plan.facts import Facts
from infra.plan.survey import survey
from infra.spec.campaign import SharedStorage
from trainer.contract import CheckpointConfig, ModelConfig

MODEL = ModelConfig(layers=2, width=96, heads=2, context=10, vocabulary=300)
"""Hidden width 256; a layer has 4 x 9,216 + 3 x 24,576 + 192 = 110,784 parameters; with embedding 28,800 and the last
norm's 96 that is 250,464."""


def test_a_small_model_counted_on_paper() -> None:
    assert sizing.feed_forward_width(96) == 256 and sizing.feed_forward_width(100) == 288
    assert sizing.parameters(MODEL) == 250_464
    # 6 x 250,464 + 12 x 2 layers x 96 x 10
    assert sizing.training_flops_per_token(MODEL) == 1_502_784 + 23_040
    assert sizing.checkpoint_bytes(MODEL, "float32") == 16 * 250_464
    assert sizing.checkpoint_bytes(MODEL, "bfloat16") == 14 * 250_464


@pytest.mark.parametrize(
    ("stage", "node", "static"),
    [
        # bfloat16 over five: weights 500,928, optimizer 3,005,568 of which a fifth is 601,113.6
        (0, 3_506_496, 500_928 + 500_928 + 3_005_568),
        (1, 500_928 + 601_114, 500_928 + 500_928 + 601_114),
        (2, 500_928 + 601_114, 500_928 + 100_186 + 601_114),
        (3, 701_300, 100_186 + 100_186 + 601_114),
    ],
)
def test_each_zero_stage_splits_what_it_says(stage: int, node: int, static: int) -> None:
    assert sizing.checkpoint_bytes_per_node(MODEL, "bfloat16", 5, stage) == node
    assert sizing.checkpoint_bytes_per_rank(MODEL, "bfloat16", 5, stage) == node
    assert sizing.static_bytes_per_rank(MODEL, "bfloat16", 5, stage) == static


def test_offloaded_states_leave_weights_and_gradients_on_the_accelerator() -> None:
    assert sizing.static_bytes_per_rank(MODEL, "bfloat16", 5, 2, offload=True) == 500_928 + 100_186
    # 12 bytes of states, 4 of the update's gradient, 2 of weights and 2 of gradients of a fifth of 250,464 parameters.
    assert sizing.host_bytes_per_rank(MODEL, "bfloat16", 5) == 20 * 50_093


@pytest.mark.parametrize(("layout", "usable"), [("RAID0", 30_400_000_000_000), ("RAID10", 15_200_000_000_000)])
def test_mirrored_disks_hold_half(layout: str, usable: int, spec_file: Callable[..., Any]) -> None:
    spec = spec_file({"nodes.instance_type": "p5.48xlarge", "storage.local.layout": layout}).spec
    facts = survey(spec)
    assert facts.instance is not None and (facts.instance.nvme_count, facts.instance.nvme_gb) == (8, 3800)
    local, shared, archive = storage.tiers(spec, facts, CheckpointConfig(keep_local=2, keep_shared=5))
    assert (local.name, shared.name, archive.name) == ("local", "shared", "archive")
    assert local.capacity_bytes == usable and archive.capacity_bytes is None
    assert shared.capacity_bytes == spec.storage.shared.capacity_gib * 1_073_741_824
    assert local.needed_bytes == 3 * local.checkpoint_bytes and shared.needed_bytes == 6 * shared.checkpoint_bytes
    assert archive.needed_bytes == archive.checkpoint_bytes == shared.checkpoint_bytes and archive.keep == 1
    assert shared.formula == "(5 kept + 1 being written) x (16 B x parameters)"
    nowhere = storage.tiers(spec, facts.model_copy(update={"instance": None}), CheckpointConfig())
    assert nowhere[0].capacity_bytes is None


@pytest.mark.parametrize(("nodes", "hours"), [(1, 2000), (2, 1000), (32, Decimal("62.5"))])
def test_a_job_fails_as_often_as_all_its_nodes_together(nodes: int, hours: Any, spec_file: Callable[..., Any]) -> None:
    changes = {"nodes.count": nodes, "training.global_batch": 8 * nodes, "recovery.node_mtbf_hours": 2000}
    spec = spec_file(changes).spec
    figures = {each.name: each for each in saving(spec, survey(spec), nodes).figures}
    assert figures["MTBF of the job"].value == hours and figures["MTBF of the job"].unit == "h"


@pytest.mark.parametrize(
    ("deployment", "per_tib", "gib", "nodes", "rate"),
    [
        ("SCRATCH_2", 1000, 2048, 9, 400e6),
        ("PERSISTENT_2", 1000, 2048, 9, 2e9),
        ("PERSISTENT_2", 250, 1024, 1, 250e6),
        # none is named: check refuses it, and until then the slowest is counted
        ("PERSISTENT_2", None, 2048, 9, 250e6),
        # two links of 100 Gbit/s are slower than 48 TiB
        ("PERSISTENT_2", 1000, 49_152, 2, 25e9),
    ],
)
def test_the_shared_tier_is_as_fast_as_its_throughput_or_the_nodes_links(
    deployment: Literal["SCRATCH_2", "PERSISTENT_2"], per_tib: int | None, gib: int, nodes: int, rate: float
) -> None:
    shared = SharedStorage.model_construct(deployment=deployment, throughput_mbs_per_tib=per_tib, capacity_gib=gib)
    assert storage.shared_bytes_per_s(shared, nodes) == pytest.approx(rate)


def test_writing_takes_its_bytes_over_its_rate(spec_file: Callable[..., Any]) -> None:
    spec = spec_file({"nodes.count": 2, "training.model": MODEL.model_dump(), "training.precision": "float32"}).spec
    facts = survey(spec)
    assert facts.instance is not None
    four = facts.model_copy(update={"instance": facts.instance.model_copy(update={"nvme_count": 4})})
    # ZeRO 1: weights 1,001,856 and half of the optimizer's 3,005,568 on each of two
    assert storage.local_write_seconds(spec, four) == pytest.approx(2_504_640 / 4e9)
    unknown = facts.model_copy(update={"instance": None})
    assert storage.local_write_seconds(spec, unknown) == pytest.approx(2_504_640 / 1e9)
    assert storage.stall_seconds(spec, four, 2) == pytest.approx(2_504_640 / 6e9 + 0.005)
    none = facts.model_copy(update={"instance": facts.instance.model_copy(update={"nvme_count": 0})})
    assert storage.local_write_seconds(spec, none) == pytest.approx(2_504_640 / 1e9), "a root volume, counted as one"


LARGE = {"training.model": {"layers": 32, "width": 4096, "heads": 32, "context": 512, "vocabulary": 32000}}


@pytest.mark.parametrize(
    ("changes", "nodes", "every", "shared"),
    [
        # 6,582,177,792 parameters x 16 B at 125 x 1,200 / 1,024 = 146.484 MB/s, written and read back: 1,437.899 s.
        # Rank 0 copies 26,328,711,168 + 78,986,133,504 / 2 B: 10.975 s are a hundredth of 3,659 steps, 1,098 s
        ({"training.steps": 10**6}, 2, 3659, 2),
        # 100 steps are all there are: 30 s, 1437.899 / 30 = 47.93
        ({}, 2, 100, 48),
        # ZeRO 3 over 64: 105,314,844,672 / 64 B / 6e9 + 0.005 = 0.27926 s, 94 steps, 28.2 s; 1437.899 / 28.2 = 50.99
        (
            {"training.steps": 10**6, "nodes.count": 64, "training.global_batch": 256, "training.zero_stage": 3},
            64,
            94,
            51,
        ),
    ],
)
def test_the_shared_tier_gets_every_save_that_it_can_keep_up_with(
    changes: dict[str, Any], nodes: int, every: int, shared: int, spec_file: Callable[..., Any]
) -> None:
    slow = {"checkpoint": None, "storage.shared.throughput_mbs_per_tib": 125, "recovery.node_mtbf_hours": 1.0}
    spec = spec_file(LARGE | slow | changes).spec
    found = saving(spec, survey(spec), nodes)
    assert found.derived and found.checkpoint.measured
    assert (found.checkpoint.every_steps, found.checkpoint.shared_every) == (every, shared)
    assert found.checkpoint.node_mtbf_hours == 1.0
    own = spec_file({}).spec
    mine = saving(own, survey(own), 2)
    assert not mine.derived and mine.checkpoint == CheckpointConfig(every_steps=10)

    def reason(given: Saving) -> str:
        return next(one.formula for one in given.figures if one.name == "save every")

    assert reason(mine) == "spec: checkpoint.every_steps" and "Daly" in reason(found)


def test_what_a_failure_costs_counts_from_the_last_shared_checkpoint(spec_file: Callable[..., Any]) -> None:
    # 10 steps of 100 s; stall (10,230,528 + 15,345,792) / 6e9 + 0.005 = 0.0092627 s; reading 40,922,112 B
    # at 250 x 1,200 / 1,024 = 292.96875 MB/s = 0.139681 s; mu = 10 h / 2 = 18,000 s; D = 5 + 300 + 30 = 335 s
    for shared_every, waste in (
        # T = 1,000.0093; 1,000 / [18,335 x 1.00000776 x (e^0.0555561 - 1 = 0.0571283)] = 0.9546947
        (1, "4.531"),
        # T = 3,000.0278; 3,000 / [18,335 x 1.00000776 x (e^0.1666682 - 1 = 0.1813622)] = 0.9021736
        (3, "9.783"),
    ):
        changes = {
            "checkpoint.shared_every": shared_every, "training.step_seconds_estimate": 100.0,
            "recovery.node_mtbf_hours": 10.0,
        }  # fmt: skip
        spec = spec_file(changes).spec
        figures = {one.name: one for one in saving(spec, survey(spec), 2).figures}
        assert str(figures["expected waste"].value) == waste and figures["expected waste"].unit == "%"


# Time


def at(stage: str, seconds: int) -> StageTime:
    return StageTime(stage=stage, seconds=Decimal(seconds), formula="")


def test_the_gang_bills_whole_until_it_is_given_back_and_then_one_of_its_nodes() -> None:
    stages = (at("bake", 10_000), at("provision", 9000), at("preflight", 300), at("launch", 20), at("supervise", 1000))
    rest = (at("archive", 180), at("teardown", 5000), at("certify", 400))
    # 300 + 20 + 1,000, 60 until given back, then 120 s of one of so many
    assert gang_seconds(stages + rest, 1) == 1500
    assert gang_seconds(stages + rest, 4) == 1410
    short = (at("archive", 40), *rest[1:])
    assert gang_seconds(stages + short, 4) == 1360, "nobody is given back after the end"
    assert seconds(stages) == 20_320 and seconds(stages, "launch", "preflight", "archive") == 320
    assert cost.hours(stages, "supervise") == Decimal("0.2778")


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        # minutes beyond the typical: bake 3 of the boot and 10 of the snapshot; provision 30 of FSx and 20 of add-ons
        # less 20; teardown 45 of the nodes, 30 of FSx and 4 less 20
        ({}, {"bake": 13, "provision": 30, "teardown": 59}),
        ({"image.nodes": "eks"}, {"provision": 30, "teardown": 59}),
        ({"storage.shared": "none"}, {"bake": 13, "provision": 15, "teardown": 44}),
        ({"nodes.instance_type": "p5.48xlarge"}, {"bake": 13, "provision": 30, "preflight": 14, "teardown": 59}),
        ({"nodes.instance_type": "p5.48xlarge", "preflight.pilot": True},
         {"bake": 13, "provision": 30, "preflight": 28, "teardown": 59}),
        ({"nodes.instance_type": "g6.48xlarge"}, {"bake": 13, "provision": 30, "teardown": 59}),
    ],
)  # fmt: skip
def test_each_stage_has_its_longest_time_by_the_long_ends_of_the_waits(
    changes: dict[str, Any], more: dict[str, int], spec_file: Callable[..., Any]
) -> None:
    spec = spec_file({"nodes.instance_type": "g6.48xlarge", **changes}).spec
    stages = clock(spec, Saving(checkpoint=CheckpointConfig(), derived=True, efficiency=1.0, figures=()), 2)
    extra = {one.stage: (longest_seconds((one,)) - one.seconds) / 60 for one in stages}
    assert {stage: minutes for stage, minutes in extra.items() if minutes} == more
    assert longest_seconds(stages) == seconds(stages) + 60 * sum(more.values())
    assert longest_seconds((at("bake", 7),)) == 7, "of a plan that is older than the field"


def test_an_efficiency_of_nothing_takes_a_hundred_times_the_work_and_not_forever(spec_file: Callable[..., Any]) -> None:
    spec = spec_file({}).spec
    # 100 x 0.3 s and 2 x 8 evaluations x 0.3 / 3 = 31.6 s
    for efficiency, wanted in ((1.0, 62), (0.5, 93), (0.02, 1610), (0.01, 3190), (0.0, 3190)):
        given = Saving(checkpoint=CheckpointConfig(), derived=True, efficiency=efficiency, figures=())
        stages = {one.stage: one for one in clock(spec, given, 2)}
        assert stages["supervise"].seconds == wanted
    assert "0.0409 GB out and read back" in stages["archive"].formula
    assert list(stages) == [
        "bake", "provision", "preflight", "launch", "supervise", "archive", "teardown", "certify",
    ]  # fmt: skip


def test_an_evaluation_is_a_third_of_its_batches_by_rank_0_alone(spec_file: Callable[..., Any]) -> None:
    changes = {"training.steps": 101, "training.evaluate_every": 50, "training.evaluate_batches": 6}
    spec = spec_file(changes | {"training.step_seconds_estimate": 0.4, "training.global_batch": 32}).spec
    # a micro step: 0.4 x 4 x 2 ranks / 32 = 0.1 s; 6 of them forward only
    assert work.one_evaluation_seconds(spec, 2) == pytest.approx(0.2)
    assert work.evaluation_seconds(spec, 2) == pytest.approx(0.6), "at 50, 100 and the end"
    assert work.training_seconds(spec) == pytest.approx(40.4)


def test_no_utilisation_is_claimed_where_no_peak_is_known(spec_file: Callable[..., Any]) -> None:
    spec = spec_file({"training.precision": "bfloat16"}).spec
    facts = survey(spec)
    assert facts.instance is not None
    unknown = facts.model_copy(update={"instance": None})
    unstated = facts.model_copy(update={"instance": facts.instance.model_copy(update={"peak_bf16_tflops": None})})
    for each in (unknown, unstated):
        assert work.implied_mfu(spec, each, 2) is None
        assert "implied MFU" not in {one.name for one in work.work_figures(spec, each, 2)}
    # (6 x 2,557,632 + 12 x 4 x 192 x 128 = 16,525,440) x 8 x 128 = 1.69220506e10, of 0.3 x 2 x 989e12
    assert work.implied_mfu(spec, facts, 2) == pytest.approx(1.69220506e10 / 5.934e14, rel=1e-6)
    # The catalogue's peak is that of bfloat16; of float32 it has none.
    assert work.implied_mfu(spec_file({"training.precision": "float32"}).spec, facts, 2) is None


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
