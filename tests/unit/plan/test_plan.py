"""A plan is a value: it reads back from JSON, every figure shows its formula, and what bends the spec bends it.

Its numbers are held against paper in `test_plan_on_paper`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from infra.errors import UserError
from infra.plan.estimates.figure import cents, figure
from infra.plan.estimates.sizing import parameters
from infra.plan.job_config import train_config
from infra.plan.layout import layout
from infra.plan.plan import Plan, make_plan
from infra.plan.survey import survey
from infra.spec.campaign import load
from tests.example import example_spec
from trainer.contract import CheckpointConfig, ModelConfig, TrainConfig, ZeroConfig

CAMPAIGNS = ("rehearsal", "p5-32-nodes", "p5en-capacity-block")


def _plan(campaigns: Path, name: str) -> Plan:
    spec = load(campaigns / f"{name}.yaml").spec
    return make_plan(spec, survey(spec))


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_plan_reads_back_from_json_unchanged(campaigns: Path, name: str) -> None:
    plan = _plan(campaigns, name)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    assert Plan.model_validate(json.loads(json.dumps(plan.model_dump(mode="json")))) == plan


def test_every_figure_shows_its_formula(campaigns: Path) -> None:
    for name, bound in (("p5en-capacity-block", None), ("rehearsal", "1h17m x 14.36 USD/h")):
        plan = _plan(campaigns, name)
        totals = [total for name in type(plan.totals).model_fields if (total := getattr(plan.totals, name)) is not None]
        for item in (*plan.work, *plan.cadence, *plan.clock, *plan.cost, *plan.tiers, *totals):
            assert item.formula
        launch = plan.totals.usd_of_dead_launch
        assert (launch is None) is (bound is None), "reserved places bill in any case"
        assert launch is None or str(bound) in launch.formula


def test_the_spec_s_own_checkpoint_section_wins(spec_file: Any) -> None:
    own, derived = spec_file({}).spec, spec_file({"checkpoint": None}).spec
    plan = make_plan(own, survey(own))
    assert plan.checkpoint == CheckpointConfig(every_steps=10, shared_every=1) and not plan.checkpoint_derived
    again = make_plan(derived, survey(derived))
    assert again.checkpoint_derived
    assert again.checkpoint.every_steps == again.figure("most steps").value == 10


def test_a_slow_file_system_gets_fewer_copies(spec_file: Any) -> None:
    model = {"layers": 32, "width": 4096, "heads": 32, "context": 512, "vocabulary": 32000}
    nodes = {"nodes.count": 32, "training.global_batch": 256, "storage.shared.throughput_mbs_per_tib": 125}
    slow = {"checkpoint": None, "training.model": model, "training.steps": 10**6, "recovery.node_mtbf_hours": 1.0}
    slow |= nodes
    spec = spec_file(slow).spec
    plan = make_plan(spec, survey(spec))
    interval = plan.checkpoint.every_steps * Decimal("0.3")
    assert plan.checkpoint.shared_every > 1
    assert plan.checkpoint.shared_every * interval >= plan.figure("shared write").value


def test_a_batch_that_does_not_divide_has_no_layout(spec_file: Any) -> None:
    spec = spec_file({"training.global_batch": 9}).spec
    with pytest.raises(UserError, match=r"multiple of micro_batch.*9 over 4 x 2.*multiple of 8"):
        layout(spec)


def test_ranks_and_accumulation_follow_from_the_spec(spec_file: Any) -> None:
    spec = spec_file({"nodes.instance_type": "p5.48xlarge", "training.global_batch": 128}).spec
    assert layout(spec).model_dump() == {"nodes": 2, "ranks_per_node": 8, "world_size": 16, "accumulation": 2}


def test_the_ranks_get_what_spec_and_plan_say(spec_file: Any) -> None:
    spec = spec_file({"training.compile": "layers"}).spec
    plan = make_plan(spec, survey(spec))
    config = train_config(spec, plan, "d" * 64)
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
    assert config.checkpoint == plan.checkpoint
    assert config.data.manifest_digest == "d" * 64
    names = ("model", "optimizer", "steps", "global_batch", "micro_batch", "zero_stage", "precision", "seed", "compile")
    for name in names:
        assert getattr(config, name) == getattr(spec.training, name)


def test_zero_s_sizes_in_the_plan_are_those_that_the_ranks_get(spec_file: Any) -> None:
    changes = {"nodes.instance_type": "p5.48xlarge", "training.global_batch": 64, "training.zero_stage": 3}
    spec = spec_file(changes | {"training.zero": {"prefetch_bucket": 12345}}).spec
    plan = make_plan(spec, survey(spec))
    zero = train_config(spec, plan, "d" * 64).zero
    assert zero.model_dump() == {
        "prefetch_bucket": 12345, "persistence_threshold": 100_000, "reduce_bucket": 50_000_000, "hpz_ranks": 1,
    }  # fmt: skip
    figures = [
        plan.figure(f"ZeRO: {name}") for name in ("fetched ahead", "gradients at once", "ranks of a second copy")
    ]
    assert [each.value for each in figures] == [12345, 50_000_000, 1]
    assert "spec: training.zero.prefetch_bucket" in figures[0].formula and "NVLink 450 GB/s" in figures[2].formula
    lower = spec_file({"training.zero_stage": 2}).spec
    assert not [each for each in make_plan(lower, survey(lower)).work if each.name.startswith("ZeRO")]
    assert train_config(lower, make_plan(lower, survey(lower)), "d" * 64).zero == ZeroConfig()


def test_what_has_no_price_is_named_and_counts_nothing(spec_file: Any) -> None:
    block = {"nodes.capacity": "capacity-block", "nodes.reservation_id": "cr-0123456789abcdef0"}
    spec = spec_file(block).spec
    plan = make_plan(spec, survey(spec))
    assert plan.unpriced == ("GPU nodes",)
    assert plan.cost[0].usd == 0 and "no price" in plan.cost[0].formula


@pytest.mark.parametrize(
    "model", [ModelConfig(), ModelConfig(layers=3, width=160, heads=5, context=64, vocabulary=999)], ids=str
)
def test_the_parameter_count_is_that_of_the_trainer_s_model(model: ModelConfig) -> None:
    import torch

    from trainer.builtin.model import Transformer

    with torch.device("meta"):
        built = Transformer(model)
    assert parameters(model) == sum(weight.numel() for weight in built.parameters())


def test_figures_are_rounded_half_up_without_exponent() -> None:
    assert str(figure("x", 2.0005, "s", "f").value) == "2.001"
    assert str(figure("x", 1e9, "s", "f").value) == "1000000000"
    assert str(figure("x", 0.1 + 0.2, "s", "f").value) == "0.3"
    assert str(cents(Decimal("0.005"))) == "0.01"


def test_a_blocks_whole_fee_is_in_the_plan_whatever_of_it_is_used(spec_file: Any) -> None:
    block = {
        "nodes.instance_type": "p5en.48xlarge", "nodes.capacity": "capacity-block", "nodes.usd_per_hour": "41.61",
        "nodes.reservation_id": "cr-0123456789abcdef0", "training.global_batch": 64, "money.budget_usd": 5000,
    }  # fmt: skip
    without = make_plan(spec := spec_file(block).spec, survey(spec))
    plan = make_plan(spec := spec_file(block | {"nodes.block_fee_usd": "1997.28"}).spec, survey(spec))
    lines = {line.name: line for line in plan.cost}
    assert lines["GPU nodes"].usd + lines["capacity block, unused"].usd == Decimal("1997.28")
    assert lines["GPU nodes"].usd > 0 and "1,997.28 USD paid at once" in lines["capacity block, unused"].formula
    rest = lines["capacity block, unused"].usd
    assert plan.totals.usd.value == without.totals.usd.value + rest
    assert plan.totals.usd_per_hour == without.totals.usd_per_hour, "what is paid already does not tick"
    until = Decimal(str(spec.money.deadline.total_seconds())) / 3600
    left = max(Decimal(0), Decimal("1997.28") - until * lines["GPU nodes"].usd_per_hour)
    at_deadline = plan.totals.usd_at_deadline.value - without.totals.usd_at_deadline.value
    assert abs(at_deadline - left) <= Decimal("0.01")
    spent = make_plan(spec := spec_file(block | {"nodes.block_fee_usd": "1"}).spec, survey(spec))
    assert next(line.usd for line in spent.cost if line.upfront_usd is not None) == 0


def test_a_blocks_end_leaves_forty_minutes_an_interval_and_the_archive(spec_file: Any) -> None:
    block = {
        "nodes.instance_type": "p5en.48xlarge", "nodes.capacity": "capacity-block", "nodes.usd_per_hour": "41.61",
        "nodes.reservation_id": "cr-0123456789abcdef0", "nodes.block_end": "2026-12-01T11:30:00Z",
        "training.global_batch": 64,
    }  # fmt: skip
    spec = spec_file(block).spec
    times = make_plan(spec, survey(spec)).block
    assert times is not None
    assert times.nodes_until == datetime(2026, 12, 1, 10, 50, tzinfo=UTC)
    # 10 steps of 0.3 s, and 180 s of archive
    assert times.train_until == datetime(2026, 12, 1, 10, 46, 57, tzinfo=UTC)


def test_a_node_image_that_is_not_baked_takes_no_time_of_the_bake() -> None:
    def bake(nodes: str) -> tuple[int, str]:
        spec = example_spec(image={"base": "bivouac/base:cuda", "nodes": nodes})
        plan = make_plan(spec, survey(spec))
        (stage,) = [one for one in plan.clock if one.stage == "bake"]
        (builders,) = [line.formula for line in plan.cost if line.name == "builder"]
        assert builders.startswith("2 x" if nodes == "bake" else "1 x"), "the trainer image has a builder of its own"
        return int(stage.seconds), stage.formula

    baked, formula = bake("bake")
    assert "node image" in formula
    for nodes in ("eks", "ami-0123456789abcdef0"):
        assert bake(nodes) == (baked - 10 * 60, "trainer image; nothing where the inputs were baked before")


@pytest.mark.parametrize(("nodes", "words"), [("bake", "2 x m7i.large, each for half of it"), ("eks", "1 x m7i.large")])
def test_builders_are_of_their_own_type_whatever_the_system_nodes_are(nodes: str, words: str) -> None:
    def builder(system: str) -> tuple[Decimal, str]:
        spec = example_spec(image={"base": "bivouac/base:cuda", "nodes": nodes})
        spec = spec.model_copy(update={"nodes": spec.nodes.model_copy(update={"system_instance_type": system})})
        (line,) = [one for one in make_plan(spec, survey(spec)).cost if one.name == "builder"]
        return line.usd_per_hour, line.formula

    rate, formula = builder("m7i.large")
    assert rate > 0 and words in formula
    assert builder("m7i.4xlarge") == (rate, formula)
