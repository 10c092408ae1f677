"""What lies on a GPU, and what would not: on fake CUDA tensors, which know their device and refuse to mix two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.trainer.builtin.model.families import config_of
from trainer.builtin.checkpoint.convert import universal
from trainer.builtin.model import build
from trainer.contract import ModelConfig

GPU = torch.device("cuda", 0)
SMALL = ModelConfig(layers=1, width=32, heads=4, context=32, vocabulary=320, reset_positions=True)


@pytest.fixture
def fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("config", [SMALL, config_of("llama")], ids=["small", "named"])
def test_rotations_follow_parameters_that_are_on_the_gpu_from_their_making(config: ModelConfig) -> None:
    """As under ZeRO 3: DeepSpeed makes the parameters there, and moves nothing later."""
    model = build(config)
    there = dict[nn.Parameter, nn.Parameter]()
    for module in model.modules():
        for name, one in module._parameters.items():
            if one is not None:
                there.setdefault(one, nn.Parameter(torch.empty(one.shape, device=GPU)))
                module._parameters[name] = there[one]
    model.initialize()
    assert {buffer.device for buffer in model.buffers()} == {GPU}
    assert model(torch.ones(2, 33, dtype=torch.long, device=GPU)).device == GPU


@pytest.mark.usefixtures("fake")
def test_a_reshaped_checkpoint_leaves_each_step_count_where_fused_adamw_reads_it() -> None:
    """Fake kernels take a count of the CPU; torch itself keeps a fused optimizer's where the parameter lies."""
    parameters = [nn.Parameter(torch.zeros(4, device=device)) for device in ("cuda:0", "cuda:0", "cpu")]
    inner = torch.optim.AdamW([{"params": [parameter]} for parameter in parameters], fused=True)
    common = torch.tensor(7)

    def load(*_: object, **__: object) -> tuple[str, dict[str, object]]:
        inner.state.update({parameter: {"step": common} for parameter in parameters})
        return "folder", {}

    optimizer = SimpleNamespace(optimizer=inner, param_groups=inner.param_groups)
    config = SimpleNamespace(load_universal_checkpoint=False)
    universal.load_universal(SimpleNamespace(optimizer=optimizer, _config=config, load_checkpoint=load), Path("at/it"))
    steps = [inner.state[parameter]["step"] for parameter in parameters]
    assert [(str(step.device), step.dtype) for step in steps] == [
        ("cuda:0", torch.float32), ("cuda:0", torch.float32), ("cpu", torch.float32),
    ]  # fmt: skip
    assert len({id(step) for step in steps}) == 3, "no two groups count in one tensor"
