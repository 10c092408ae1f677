"""Adapters in a spec: their number by formula, what they save, and what is refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from infra.plan.checks import check, failed
from infra.plan.estimates import sizing, storage
from infra.plan.job_config import train_config
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from tests.trainer.builtin.model.families import FAMILIES, config_of
from trainer.builtin.model.named import network_of
from trainer.contract import LoraConfig
from trainer.contract.model.shape import adapter_parameters, parameters, trained_parameters


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "down_proj"), ("k_proj",)])
def test_the_formula_counts_what_peft_makes(family: str, targets: Any) -> None:
    import peft  # takes a second and a half, which every worker of a run would pay for while it collects

    model = config_of(family, lora=LoraConfig(rank=3, targets=targets))
    with torch.device("meta"):
        network = network_of(model)
        wanted = targets if isinstance(targets, str) else list(targets)
        made = peft.get_peft_model(network, peft.LoraConfig(r=3, target_modules=wanted))
    trained, everything = made.get_nb_trainable_parameters()
    assert adapter_parameters(model) == trained_parameters(model) == trained
    assert parameters(model) + adapter_parameters(model) == everything


def test_states_of_adapters_alone_are_sized_on_paper() -> None:
    # 2 layers of width 48 with 4 heads of 12 (2 of keys): queries 48 to 48, values 48 to 24. Rank 4.
    plain = config_of("llama")
    model = plain.model_copy(update={"lora": LoraConfig(rank=4, targets=("q_proj", "v_proj"))})
    adapters, weights = 2 * 4 * (96 + 72), parameters(plain)
    assert adapter_parameters(model) == adapters
    assert sizing.checkpoint_bytes(model, "bfloat16") == 2 * (weights + adapters) + 12 * adapters
    assert sizing.checkpoint_bytes_per_node(model, "float32", 2, 1) == 4 * (weights + adapters) + 6 * adapters
    assert sizing.static_bytes_per_rank(model, "bfloat16", 4, 1) == 2 * (weights + adapters) + (2 + 3) * adapters
    saved = sizing.training_flops_per_token(plain) - sizing.training_flops_per_token(model)
    assert saved == 2 * (weights - 320 * 48) - 6 * adapters


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (folder := tmp_path / "weights").mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def model_of(**lora: Any) -> dict[str, Any]:
    return {"training.model": {"name": "debug", "lora": lora}}


def refused(file: Any) -> list[tuple[str, str]]:
    facts = survey(file.spec)
    found = check(file, facts, facts.prices.as_of)
    return [(one.field, f"{one.message}; {one.cure}") for one in found if failed((one,))]


def test_the_ranks_get_what_the_spec_says(spec_file: Any, weights: Path) -> None:
    file = spec_file({**model_of(rank=4, targets=["q_proj"]), "training.init_from": str(weights)})
    assert refused(file) == []
    config = train_config(file.spec, make_plan(file.spec, survey(file.spec)), "d" * 64, init_from="/data/weights")
    assert config.model.lora == LoraConfig(rank=4, targets=("q_proj",))


@pytest.mark.parametrize(("stage", "parts"), [(1, 1), (3, 2)])
def test_the_plan_counts_the_base_once_on_folders_and_with_each_step_in_s3(
    stage: int, parts: int, spec_file: Any, weights: Path
) -> None:
    changes = {**model_of(rank=4), "training.init_from": str(weights), "training.zero_stage": stage, "nodes.count": 2}
    spec, bucket_spec = spec_file(changes).spec, spec_file({**changes, "storage.shared": "none"}).spec
    base, adapters = 4 * parameters(spec.training.model), adapter_parameters(spec.training.model)
    local, shared, archive = make_plan(spec, survey(spec)).tiers
    # Weights 4 B, states 12 B: of stage 1 each node has all weights and half of the states, of stage 3 half of all.
    own = adapters * 16 / 2 if stage == 3 else adapters * (4 + 12 / 2)
    assert local.needed_bytes == pytest.approx(base / parts + (local.keep + 1) * own, abs=8)
    assert shared.needed_bytes == base + (shared.keep + 1) * 16 * adapters and shared.formula.endswith("once")
    assert archive.needed_bytes == base + 16 * adapters
    (bucket,) = [tier for tier in make_plan(bucket_spec, survey(bucket_spec)).tiers if tier.name == "shared"]
    assert bucket.needed_bytes == (bucket.keep + 1) * (base + 16 * adapters)
    rate = 2 * 1.25e9  # two clients of S3
    seconds = (2 * 16 * adapters + base) / rate
    assert storage.shared_write_seconds(bucket_spec) == pytest.approx(seconds), "sent: adapters; read back: all"
    assert storage.local_write_seconds(spec, survey(spec)) * 1e9 < base / parts, "a save writes no base"


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({**model_of(rank=4), "training.init_from": None}, "training.model.lora", "write training.init_from"),
        ({**model_of(), "training.parallel": {"tensor": 2}}, "training.model.lora", "AutoTP"),
        (model_of(targets=["q_proj", "lm_head"]), "training.model.lora.targets", "take of q_proj, k_proj"),
        ({**model_of(dropout=0.1), "training.watch": {"replay_every": 5}}, "training.model.lora.dropout", "write 0"),
        ({**model_of(dropout=0.1), "training.watch": {"precision_every": 5}}, "training.model.lora.dropout", "write 0"),
        (
            {"training.model": {"name": "some.module:model", "parameters": 1000, "lora": {}}},
            "training.model.lora",
            "by name or folder",
        ),
    ],
)
def test_what_cannot_be_trained_honestly_is_refused_with_the_reason(
    changes: dict[str, Any], field: str, said: str, spec_file: Any, weights: Path
) -> None:
    found = refused(spec_file({"training.init_from": str(weights), **changes}))
    assert [why for place, why in found if place == field and said in why], found
