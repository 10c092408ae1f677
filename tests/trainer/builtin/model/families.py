"""Small models of the kinds that the catalogue has: tied and untied, grouped queries, scaled rotations."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trainer.contract import ModelConfig

CONTEXT, END, VOCABULARY = 32, 0, 320
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 256, "initializer_range": 0.1,
}  # fmt: skip
_SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "num_key_value_heads": 2, "rope_theta": 500000.0, "rope_scaling": _SCALED,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    },
    "llama-tied": {"model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 1, "sliding_window": None, "head_dim": 16},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 20, "tie_word_embeddings": True},
}  # fmt: skip


QUICK = ("llama", "qwen3")
EACH = [one if one in QUICK else pytest.param(one, marks=pytest.mark.nightly) for one in FAMILIES]


def config_of(family: str, **switches: Any) -> ModelConfig:
    config = copy.deepcopy({**_COMMON, **FAMILIES[family]})
    return ModelConfig(
        name=family, config=config, context=CONTEXT, vocabulary=VOCABULARY, layers=2, width=48, heads=4, **switches
    )
