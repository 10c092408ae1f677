"""No weight is drawn that a checkpoint or the weights to start from replace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.builtin.model.families import config_of
from trainer.builtin import engine
from trainer.builtin.model import build
from trainer.builtin.model.drawn import draw
from trainer.contract import ModelConfig, TrainConfig

SMALL = ModelConfig(layers=1, width=32, heads=2, context=16, vocabulary=300)
SEED = 7


class Built(Exception):
    """DeepSpeed gets the model; no engine is made."""


@pytest.fixture
def model_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the model that an engine would be made of."""

    def initialize(model: nn.Module, **_: object) -> NoReturn:
        raise Built(model)

    deepspeed = SimpleNamespace(
        initialize=initialize, zero=SimpleNamespace(GatheredParameters=lambda tensor, modifier_rank: nullcontext())
    )
    monkeypatch.setattr(engine, "import_deepspeed", lambda: deepspeed)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)

    def of(model: ModelConfig, restores: bool, init_from: str = "") -> Any:
        config = TrainConfig(campaign="c", model=model, steps=1, global_batch=2, seed=SEED, init_from=init_from)
        with pytest.raises(Built) as built:
            engine.build_engine(config, 1, restores)
        return built.value.args[0]

    return of


def random_state(seed: int) -> Tensor:
    """Return the state of a generator that nobody has drawn from since it got its seed."""
    return torch.Generator().manual_seed(seed).get_state()


def inside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the draws of any tensor, as they come."""
    draws = list[str]()
    for name in ("normal_", "uniform_"):

        def counted(tensor: Tensor, *arguments: Any, counted_name: str = name, **keywords: Any) -> Tensor:
            draws.append(counted_name)
            return tensor

        monkeypatch.setattr(Tensor, name, counted)
    return draws


@pytest.mark.parametrize("model", [SMALL, config_of("llama")], ids=["small", "named"])
def test_a_start_that_restores_draws_no_weight_and_reads_none_to_start_from(
    model: ModelConfig, model_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = inside(monkeypatch)
    folder = "/nowhere/at/all" if model.name else ""
    assert all(buffer.isfinite().all() for buffer in model_of(model, True, folder).buffers())
    assert draws == [] and torch.equal(torch.get_rng_state(), random_state(SEED))


@pytest.mark.parametrize("model", [SMALL, config_of("llama")], ids=["small", "named"])
def test_a_fresh_start_draws_each_matrix_once_and_by_its_seed(
    model: ModelConfig, model_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (dict(model_of(model, False).named_parameters()) for _ in range(2))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    draws = inside(monkeypatch)
    model_of(model, False)
    assert len(draws) == sum(parameter.dim() > 1 for parameter in first.values())


def test_weights_to_start_from_are_read_and_none_is_drawn(
    model_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("llama")
    draw(config, tmp_path)
    torch.manual_seed(0)
    expected = dict(build(config).named_parameters())
    draws = inside(monkeypatch)
    weights = dict(model_of(config, False, str(tmp_path)).named_parameters())
    assert draws == [] and all(torch.equal(weights[name], expected[name]) for name in expected)


def test_what_is_no_parameter_is_drawn_all_the_same() -> None:
    from trainer.builtin.model.building import undrawn

    buffer, parameter = torch.zeros(64), nn.Parameter(torch.zeros(64))
    with undrawn():
        for tensor in (buffer, parameter):
            nn.init.normal_(tensor)
    assert buffer.any() and not parameter.any()
    assert nn.init.normal_(parameter).any(), "the function is back"
