"""A model that does not fit is refused with the cheapest change that makes it fit; a prediction costs seconds only
where the rough size is close."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.plan import catalogue
from infra.plan.checks import fewer_nodes, training
from infra.plan.checks.finding import Case, Level
from infra.plan.facts import MemoryCure, MemoryPrediction
from infra.plan.layout import ranks_per_node
from infra.plan.memory import is_close, predict_memory
from infra.spec.campaign import Spec, load
from tests.root import ROOT
from tests.unit.plan.checks.edges import cases
from trainer.contract.model.shape import parameters

GIB = 2**30
RULE = training.accelerator_memory


def campaign(folder: Path, **changes: Any) -> Spec:
    """Return the shipped campaign of 32 nodes with another training; None leaves a field out."""
    values = yaml.safe_load((ROOT / "infra/campaigns/p5-32-nodes.yaml").read_text())
    training = values["training"] | changes
    values["training"] = {name: value for name, value in training.items() if value is not None}
    path = folder / "campaign.yaml"
    path.write_text(yaml.safe_dump(values))
    return load(path).spec


@pytest.fixture
def case(spec_file: Callable[..., Any]) -> Callable[[MemoryPrediction], Case]:
    return lambda memory: cases(spec_file)(facts=lambda facts: facts.model_copy(update={"memory": memory}))


def test_the_first_cure_that_fits_is_named(case: Callable[[MemoryPrediction], Case]) -> None:
    cures = (MemoryCure(words="one", peak=11 * GIB), MemoryCure(words="two", peak=9 * GIB))
    memory = MemoryPrediction(
        parts={"weights": 3 * GIB, "micro_batch": 9 * GIB}, peak=12 * GIB, usable=10 * GIB, cures=cures
    )
    (found,) = RULE(case(memory))
    assert (found.level, found.cure) == (Level.ERROR, "write two: 9.0 GiB")
    assert found.seen.startswith("12.0 GiB of 10.0 usable") and "micro batch 9.0" in found.seen
    (found,) = RULE(case(memory.model_copy(update={"cures": cures[:1]})))
    assert found.level == Level.ERROR and "more nodes" in found.cure


@pytest.mark.parametrize(("peak", "level"), [(9.01, Level.WARNING), (8.99, Level.INFO), (10.0, Level.WARNING)])
def test_the_margin_is_told(case: Callable[[MemoryPrediction], Case], peak: float, level: Level) -> None:
    (found,) = RULE(case(MemoryPrediction(parts={"weights": GIB}, peak=int(peak * GIB), usable=10 * GIB)))
    assert found.level == level and "margin" in found.message


def test_without_a_prediction_the_state_alone_is_judged_and_the_reason_is_told(
    case: Callable[[MemoryPrediction], Case],
) -> None:
    (found,) = RULE(case(MemoryPrediction(trouble="no torch here")))
    assert found.level == Level.WARNING and "no torch here" in found.seen


@pytest.mark.parametrize(("spare_bytes", "fits"), [(1, True), (0, True), (-1, False)])
def test_the_fewest_nodes_have_room_for_activations_and_what_the_state_grows_by(
    spec_file: Callable[..., Any], spare_bytes: int, fits: bool
) -> None:
    """ZeRO deals 12 bytes of each parameter out to all ranks: to half as many with one of two nodes."""
    spec = spec_file({"recovery.min_nodes": 1, "training.zero_stage": 1}).spec
    count = parameters(spec.training.model)
    ranks = ranks_per_node(spec, catalogue.instance_type(spec.nodes.instance_type).accelerators)
    growth = math.ceil(12 * count / ranks) - math.ceil(12 * count / (2 * ranks))
    memory = MemoryPrediction(peak=10 * GIB, usable=10 * GIB + growth + spare_bytes)
    told = list(
        fewer_nodes.smaller_gang_memory(
            cases(spec_file)(
                {"recovery.min_nodes": 1, "training.zero_stage": 1},
                facts=lambda facts: facts.model_copy(update={"memory": memory}),
            )
        )
    )
    assert [draft.level for draft in told] == ([] if fits else [Level.ERROR])
    assert all("at the peak" in draft.seen and draft.cure == "write more nodes" for draft in told)


def test_only_a_model_that_may_not_fit_is_asked_for() -> None:
    h100 = catalogue.instance_type("p5.48xlarge")
    close = {
        name: is_close(load(ROOT / f"infra/campaigns/{name}.yaml").spec, h100) for name in ("p5-32-nodes", "rehearsal")
    }
    assert close == {"p5-32-nodes": True, "rehearsal": False}


def test_ranks_that_share_matrices_do_not_make_a_large_model_look_small(tmp_path: Path) -> None:
    # The exact size of this one is 85 GiB: embedding, output layer and most activations lie whole on each rank.
    shared = {"model": "llama-3.1-8b", "parallel": {"tensor": 8}, "micro_batch": 3, "global_batch": 960}
    assert is_close(campaign(tmp_path, recompute=None, **shared), catalogue.instance_type("p5.48xlarge"))


def test_a_prediction_is_kept_for_equal_questions_and_equal_code_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers count how often the model itself is asked."""
    answers = iter(range(1, 100))

    def answer(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess((), 0, json.dumps({"weights": 1, "host": 0, "peak": next(answers)}))

    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path))
    monkeypatch.setattr("infra.plan.memory.subprocess.run", answer)
    h100 = catalogue.instance_type("p5.48xlarge")

    def peak(spec: Spec) -> int:
        return predict_memory(spec, h100).peak

    plain, replays = campaign(tmp_path, zero_stage=2), campaign(tmp_path, zero_stage=2, watch={"replay_every": 50})
    assert [peak(plain), peak(plain), peak(replays), peak(plain), peak(replays)] == [1, 1, 2, 1, 2]
    monkeypatch.setattr("infra.plan.memory.version", lambda name: f"next {name}")
    assert [peak(plain), peak(plain)] == [3, 3]
    code = tmp_path / "changed" / "contract" / "__init__.py"
    code.parent.mkdir(parents=True)
    code.write_text("other = 1\n")
    monkeypatch.setattr("infra.plan.memory.contract.__file__", str(code))
    assert [peak(plain), peak(plain)] == [4, 4]


@pytest.mark.nightly
def test_the_shipped_campaign_fits_and_would_not_without_recomputation() -> None:
    spec, h100 = load(ROOT / "infra/campaigns/p5-32-nodes.yaml").spec, catalogue.instance_type("p5.48xlarge")
    fits = predict_memory(spec, h100)
    assert fits.peak < fits.usable and not fits.cures
    kept = spec.built_in[0].recompute.model_copy(update={"policy": "none"})
    changed = spec.built_in[0].model_copy(update={"recompute": kept})
    refused = predict_memory(spec.model_copy(update={"training": changed}), h100)
    assert refused.peak > refused.usable
    assert [cure.words for cure in refused.cures] == ["training.recompute: {policy: selective}"]
    assert refused.cures[0].peak == fits.peak


@pytest.mark.nightly
def test_the_memory_of_a_replay_is_predicted(tmp_path: Path) -> None:
    """With stage 2 a replay keeps the gradients of all weights, which no step does."""
    h100, lean = catalogue.instance_type("p5.48xlarge"), {"policy": "full"}
    plain = predict_memory(campaign(tmp_path, zero_stage=2, micro_batch=1, recompute=lean), h100)
    replayed = predict_memory(
        campaign(tmp_path, zero_stage=2, micro_batch=1, recompute=lean, watch={"replay_every": 50}), h100
    )
    assert replayed.peak > plain.peak
