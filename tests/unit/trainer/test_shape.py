"""Parameters by formula are those of the true model, and of the published ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infra.plan.estimates.sizing import training_flops_per_token
from infra.spec.models.named import catalogue, resolve_model
from tests.trainer.builtin.model.families import FAMILIES, config_of
from trainer.builtin.model.named import network_of
from trainer.contract import ModelConfig
from trainer.contract.model.shape import parameters, shape_of

PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_248_023_552,
    "7b": 6_738_415_616,
    "1b": 1_100_048_384,
}
"""Parameters that Hugging Face shows for the weights of each model."""


def named(name: str, **fields: Any) -> ModelConfig:
    return ModelConfig.model_validate(resolve_model({"name": name, **fields}))


def counted(model: ModelConfig) -> int:
    with torch.device("meta"):
        network = network_of(model)
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", catalogue())
def test_the_formula_counts_a_model_of_the_catalogue(name: str) -> None:
    # Layers are alike: two instead of eighty count the same terms.
    few = named(name, config={"num_hidden_layers": 2})
    assert parameters(few) == counted(few)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bias", [False, True])
def test_the_formula_counts_biases_and_shared_embeddings(family: str, bias: bool) -> None:
    model = config_of(family)
    model = model.model_copy(update={"config": {**model.config, "attention_bias": bias}})
    assert parameters(model) == counted(model)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_whole_model_has_as_many_parameters_as_the_published_one(name: str) -> None:
    assert parameters(named(name)) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("kind", "absent"), [("mistral", "num_key_value_heads"), ("qwen3", "head_dim"), ("llama", "num_key_value_heads")]
)
def test_what_a_configuration_leaves_out_is_what_transformers_takes(kind: str, absent: str) -> None:
    given = {
        "model_type": kind, "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    given.pop(absent, None)
    model = named("somewhere/else", config=given)
    assert parameters(model) == counted(model)


def test_the_formula_is_the_number_in_numbers() -> None:
    for name in catalogue():
        shape = shape_of(named(name))
        assert eval(shape.formula.replace(" x ", " * ").replace("^", "**")) == shape.parameters


def test_the_operations_of_llama_8b_counted_on_paper() -> None:
    # 8,030,261,248 without the embedding 128,256 x 4,096 = 525,336,576: 7,504,924,672 x 6 = 45,029,548,032;
    # attention 12 x 32 layers x 4,096 x 8,192 = 12,884,901,888
    assert training_flops_per_token(named("llama-3.1-8b")) == 45_029_548_032 + 12_884_901_888
    # tied: all 596,049,920 x 6 = 3,576,299,520; heads are wider than the model: 12 x 28 x 16 x 128 x 4,096
    assert parameters(named("qwen3-0.6b")) == 596_049_920
    assert training_flops_per_token(named("qwen3-0.6b")) == 3_576_299_520 + 2_818_572_288
