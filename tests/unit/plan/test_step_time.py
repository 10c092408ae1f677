"""The plan's step time is the spec's, or follows from a published MFU whose source it names; else it is unmeasured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infra.plan.checks import check
from infra.plan.estimates import work
from infra.plan.estimates.step_time import Utilisation, nearest_utilisation, step_time, utilisations, with_step_time
from infra.plan.facts import Facts
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.spec.campaign import Spec
from tests.example import example_spec

LLAMA_8B: dict[str, Any] = {"name": "llama-3.1-8b", "context": 8192}


def training(model: dict[str, Any], **changes: Any) -> Spec:
    return example_spec(training={"model": model, "micro_batch": 1, **changes})


def facts_of(spec: Spec) -> Facts:
    return survey(spec).model_copy(update={"memory": None})


def test_a_published_run_of_this_size_context_and_device_gives_the_time_and_its_source() -> None:
    spec = training(LLAMA_8B, zero_stage=3)
    found = step_time(spec, facts_of(spec))
    # 57,914,449,920 FLOP a token (test_shape.py) x 256 x 8,192 tokens, on 32 x 989e12 at 33.7 %
    assert found.seconds == pytest.approx(57_914_449_920 * 256 * 8192 / (32 * 989e12 * 0.337), rel=1e-5)
    assert "MFU computed: 33.7%" in found.formula and "TorchTitan" in found.formula
    assert "unmeasured" not in found.formula
    plan = make_plan(spec, facts_of(spec))
    assert plan.figure("step time").formula == found.formula
    assert float(plan.figure("implied MFU").value) == pytest.approx(33.7, abs=0.01)
    assert float(plan.figure("training time").value) == pytest.approx(1000 * found.seconds, rel=1e-5)
    assert plan.spec_digest == spec.digest(), "what the plan derives is no part of the spec"


def test_the_specs_own_estimate_comes_first() -> None:
    spec = training(LLAMA_8B, step_seconds_estimate=9.0)
    assert with_step_time(spec, facts_of(spec)) is spec
    assert step_time(spec, facts_of(spec)).formula == "spec: training.step_seconds_estimate"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recompute": {"policy": "full"}}, "x 3/4 for recompute: full"),
        ({"zero_stage": 3, "optimizer": {"offload": "cpu"}}, "offload is not in it"),
        ({"model": {**LLAMA_8B, "context": 2048, "name": "llama-3.1-70b"}}, "nearest: 38.1% of 30B, context 2048"),
        ({"precision": "float32"}, "no dense peak is known"),
        ({"model": {"layers": 2, "width": 128, "heads": 2, "vocabulary": 4096}}, "so small a model"),
    ],
)
def test_what_no_published_run_did_is_called_unmeasured(changes: dict[str, Any], words: str) -> None:
    spec = training(changes.pop("model", LLAMA_8B), **changes)
    found = step_time(spec, facts_of(spec))
    assert "unmeasured" in found.formula and words in found.formula


def test_a_device_of_another_kind_and_a_rehearsal_are_unmeasured() -> None:
    spec = training(LLAMA_8B)
    facts = facts_of(spec)
    assert facts.instance is not None
    other = facts.model_copy(update={"instance": facts.instance.model_copy(update={"accelerator": "B200"})})
    assert "unmeasured; nearest: 33.7%" in step_time(spec, other).formula
    places = facts.environment.model_copy(update={"hardware": False})
    rehearsed = step_time(spec, facts.model_copy(update={"environment": places}))
    assert rehearsed.seconds == 1.0 and "unmeasured" in rehearsed.formula


def test_a_compiled_training_is_planned_by_a_compiled_run_and_a_plain_one_by_a_plain_run() -> None:
    plain, compiled = (training({**LLAMA_8B, "context": 8192}, compile=how) for how in ("none", "layers"))
    before, after = (step_time(spec, facts_of(spec)) for spec in (plain, compiled))
    assert "compiled" in after.formula and "compiled" not in before.formula and after.seconds < before.seconds
    assert "unmeasured" not in before.formula + after.formula


@pytest.mark.parametrize(("tokens_per_s", "context", "compiled"), [(5762, 8192, False), (6667, 8192, True)])
def test_a_computed_row_is_what_its_published_tokens_make_by_our_formula(
    tokens_per_s: float, context: int, compiled: bool
) -> None:
    row = nearest_utilisation("H100", 8.03e9, context, compiled)
    assert row.source.says == "computed" and row.compiled == compiled
    assert row.mfu == pytest.approx(57_914_449_920 * tokens_per_s / 989.5e12, abs=0.0006)


def test_every_row_has_a_source_and_no_mfu_is_above_one() -> None:
    rows = utilisations()
    assert all(0.2 < row.mfu <= 1 and row.source.name for row in rows) and len(rows) >= 17
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        Utilisation.model_validate(rows[0].model_dump() | {"mfu": 1.01})


FACTS = facts_of(example_spec())


@given(
    layers=st.integers(12, 100), width=st.integers(8, 64).map(lambda count: 128 * count),
    context=st.integers(3, 17).map(lambda power: 2**power), nodes=st.integers(1, 64),
)  # fmt: skip
def test_a_derived_step_never_claims_an_mfu_that_no_row_has(layers: int, width: int, context: int, nodes: int) -> None:
    model = {"layers": layers, "width": width, "heads": width // 64, "context": context, "vocabulary": 32_000}
    spec = example_spec(nodes={"count": nodes}, training={"model": model, "global_batch": 512})
    found = with_step_time(spec, FACTS)
    mfu = work.implied_mfu(found, FACTS, 8 * nodes)
    assert mfu is not None
    if "so small" not in step_time(spec, FACTS).formula:
        assert min(row.mfu for row in utilisations()) * 0.99 <= mfu <= max(row.mfu for row in utilisations()) * 1.01


def test_check_and_plan_take_the_same_derived_time() -> None:
    spec = training(LLAMA_8B, zero_stage=3, collective_timeout_s=1.0)
    facts = facts_of(spec)
    file: Any = SimpleNamespace(spec=spec, path=Path("any.yaml"), line_of=lambda field: 1)
    (late,) = [row for row in check(file, facts, facts.prices.as_of) if row.rule == "timeout-length"]
    assert late.field == "training.collective_timeout_s"
    assert f"{step_time(spec, facts).seconds:.3g}" in late.seen
