"""What DeepSpeed is told, by stage, device and format."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.builtin import engine
from trainer.contract import TrainConfig


def settings(stage: int, **more: Any) -> dict[str, Any]:
    given = {"campaign": "c", "steps": 1, "global_batch": 2, "micro_batch": 1, "zero_stage": stage}
    return engine.deepspeed_config(TrainConfig.model_validate(given | {"precision": "bfloat16"} | more), 2)


@pytest.mark.parametrize(("gpu", "overlapping"), [(True, [2, 3]), (False, [])])
def test_gradients_are_exchanged_beside_the_backward_pass_where_a_gpu_can(
    gpu: bool, overlapping: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "has_gpu", lambda: gpu)
    assert [stage for stage in range(4) if settings(stage)["zero_optimization"]["overlap_comm"]] == overlapping


def test_a_spec_without_these_fields_tells_deepspeed_nothing_of_them() -> None:
    told = settings(2)
    assert not {"communication_data_type", "data_types", "zero_force_ds_cpu_optimizer"} & told.keys()
    assert "offload_optimizer" not in told["zero_optimization"]


def test_formats_are_told_in_bfloat16_alone() -> None:
    gradients = {"accumulate": "float32", "reduce": "float32"}
    told = settings(2, gradients=gradients)
    assert (told["communication_data_type"], told["data_types"]) == ("fp32", {"grad_accum_dtype": "fp32"})
    assert "data_types" not in settings(2, gradients=gradients, precision="float32")


def test_stage_3_gets_the_sizes_of_its_model_and_no_other_stage_does() -> None:
    config = {
        "model_type": "llama", "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096,
    }  # fmt: skip
    model = {"name": "a-model", "config": config}
    zero = settings(3, model=model, zero={"hpz_ranks": 2})["zero_optimization"]
    # A layer: 4 x 4096^2 + 3 x 4096 x 11,008 + 2 x 4096.
    names = ("stage3_prefetch_bucket_size", "reduce_bucket_size", "stage3_param_persistence_threshold")
    assert [zero[name] for name in names] == [202_383_360, 202_383_360, 100_000]
    assert zero["zero_hpz_partition_size"] == 2
    assert not {*names, "zero_hpz_partition_size"} & settings(2)["zero_optimization"].keys()
