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
