"""A model that does not fit is refused with the cheapest change that makes it fit; a prediction costs seconds only
where the rough size is close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra.plan import catalogue
from infra.plan.checks import training
from infra.plan.checks.finding import Case, Level
from infra.plan.facts import Memory, MemoryCure
from infra.plan.memory import is_close, predicted
from infra.spec.campaign import load
from tests.root import ROOT
from tests.unit.plan.checks.edges import cases

GIB = 2**30
RULE = training.model_fits_the_accelerator


@pytest.fixture
def case(spec_file: Callable[..., Any]) -> Callable[[Memory], Case]:
    return lambda memory: cases(spec_file)(facts=lambda facts: facts.model_copy(update={"memory": memory}))


def test_the_first_cure_that_fits_is_named(case: Callable[[Memory], Case]) -> None:
    cures = (MemoryCure(words="one", peak=11 * GIB), MemoryCure(words="two", peak=9 * GIB))
    memory = Memory(parts={"weights": 3 * GIB, "micro_batch": 9 * GIB}, peak=12 * GIB, usable=10 * GIB, cures=cures)
    (found,) = RULE(case(memory))
    assert (found.level, found.cure) == (Level.ERROR, "write two: 9.0 GiB")
    assert found.seen.startswith("12.0 GiB of 10.0 usable") and "micro batch 9.0" in found.seen
    (found,) = RULE(case(memory.model_copy(update={"cures": cures[:1]})))
    assert found.level == Level.ERROR and "more nodes" in found.cure


@pytest.mark.parametrize(("peak", "level"), [(9.01, Level.WARNING), (8.99, Level.INFO), (10.0, Level.WARNING)])
def test_the_margin_is_told(case: Callable[[Memory], Case], peak: float, level: Level) -> None:
    (found,) = RULE(case(Memory(parts={"weights": GIB}, peak=int(peak * GIB), usable=10 * GIB)))
    assert found.level == level and "margin" in found.message


def test_without_a_prediction_the_state_alone_is_judged_and_the_reason_is_told(case: Callable[[Memory], Case]) -> None:
    (found,) = RULE(case(Memory(trouble="no torch here")))
    assert found.level == Level.WARNING and "no torch here" in found.seen


def test_only_a_model_that_may_not_fit_is_asked_for() -> None:
    h100 = catalogue.instance_type("p5.48xlarge")
    close = {
        name: is_close(load(ROOT / f"infra/campaigns/{name}.yaml").spec, h100) for name in ("p5-32-nodes", "rehearsal")
    }
    assert close == {"p5-32-nodes": True, "rehearsal": False}


@pytest.mark.nightly
def test_the_shipped_campaign_fits_and_would_not_without_recomputation() -> None:
    spec, h100 = load(ROOT / "infra/campaigns/p5-32-nodes.yaml").spec, catalogue.instance_type("p5.48xlarge")
    fits = predicted(spec, h100)
    assert fits.peak < fits.usable and not fits.cures
    kept = spec.built_in[0].recompute.model_copy(update={"policy": "none"})
    changed = spec.built_in[0].model_copy(update={"recompute": kept})
    refused = predicted(spec.model_copy(update={"training": changed}), h100)
    assert refused.peak > refused.usable
    assert [cure.words for cure in refused.cures] == ["training.recompute: {policy: selective}"]
    assert refused.cures[0].peak == fits.peak
