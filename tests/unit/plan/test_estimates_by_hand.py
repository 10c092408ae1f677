"""Sizes, rates, chances and dollars, each worked out on paper for numbers small enough to follow."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

import pytest

from infra.plan.estimates import cost, sizing, storage, work
from infra.plan.estimates.clock import StageTime, clock, gang_seconds, longest_seconds, seconds
from infra.plan.estimates.saving import Saving, saving
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
    figures = {figure.name: figure for figure in saving(spec, survey(spec), nodes).figures}
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
        return next(figure.formula for figure in given.figures if figure.name == "save every")

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
        figures = {figure.name: figure for figure in saving(spec, survey(spec), 2).figures}
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
    extra = {stage.stage: (longest_seconds((stage,)) - stage.seconds) / 60 for stage in stages}
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
        assert "implied MFU" not in {figure.name for figure in work.work_figures(spec, each, 2)}
    # (6 x 2,557,632 + 12 x 4 x 192 x 128 = 16,525,440) x 8 x 128 = 1.69220506e10, of 0.3 x 2 x 989e12
    assert work.implied_mfu(spec, facts, 2) == pytest.approx(1.69220506e10 / 5.934e14, rel=1e-6)
    # The catalogue's peak is that of bfloat16; of float32 it has none.
    assert work.implied_mfu(spec_file({"training.precision": "float32"}).spec, facts, 2) is None
