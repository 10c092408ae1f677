"""A model that does not fit one device: its layers on several, on tensors that refuse to meet another device's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.trainer.builtin.model.families import config_of
from trainer.builtin.model import Transformer, build
from trainer.builtin.model.placing import bytes_of, place
from trainer.contract import ModelConfig
from trainer.errors import ConfigError

OWN = ModelConfig(layers=6, width=32, heads=2, context=24, vocabulary=258, document_attention=True, end_of_document=3)
GPUS = [torch.device("cuda", index) for index in range(3)]


@pytest.mark.parametrize("family", ["own", "llama", "qwen3"])
def test_each_layer_computes_where_it_lies(family: str) -> None:
    config = OWN
    if family != "own":
        named = config_of(family, document_attention=True, end_of_document=3)
        config = named.model_copy(update={"config": {**named.config, "num_hidden_layers": 12}})
    with FakeTensorMode():
        model: Any = build(config).eval()
        whole = bytes_of(model)
        first = place(model, GPUS, [whole // 2] * 3)
        loss = model(torch.zeros(2, config.context + 1, dtype=torch.long, device=first))
    assert first == GPUS[0] and loss.device == GPUS[0]
    for device in GPUS:
        there = {
            id(parameter): parameter.numel() * parameter.element_size()
            for parameter in model.parameters()
            if parameter.device == device
        }
        assert 0 < sum(there.values()) <= 0.8 * (whole // 2), device
    order = [
        int(str(one.device)[-1]) for name, one in model.named_parameters() if "layernorm" in name or "_norm." in name
    ]
    assert order == sorted(order), "the data goes through the devices once"


def test_what_fits_one_device_lies_there_and_what_fits_none_is_refused() -> None:
    with FakeTensorMode():
        model = Transformer(OWN)
        size = bytes_of(model)
        place(model, GPUS, [int(1.3 * size)] * 3)
        assert {parameter.device for parameter in model.parameters()} == {GPUS[0]}
        with pytest.raises(ConfigError, match=r"does not fit the devices of one node; seen: .* free on 3 devices"):
            place(Transformer(OWN), GPUS, [size // 3] * 3)
        with pytest.raises(ConfigError, match="does not fit the devices"):
            place(Transformer(OWN), GPUS, [100, size, size])


def test_over_several_devices_the_loss_is_the_same_in_every_bit() -> None:
    tokens = torch.randint(0, 258, (2, OWN.context + 1), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(1)
    model = Transformer(OWN).eval()
    wanted = model(tokens)
    size = bytes_of(model)
    place(model, [torch.device("cpu")] * 3, [size // 2] * 3)
    assert torch.equal(model(tokens), wanted) and model.blocks[0]._forward_pre_hooks, "it was not spread"
