"""A loss of precision: what 8 bits lose of a loss is seen on a true model, and judged against what it was before."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from tests.trainer.builtin.model.families import config_of
from tests.trainer.builtin.watch.test_detectors import rang, steps
from trainer.builtin.model import build
from trainer.builtin.watch.detectors import Seen
from trainer.builtin.watch.precision import rounding
from trainer.builtin.watch.watch import Watch
from trainer.contract import ModelConfig, WatchConfig


@pytest.mark.parametrize(
    "config", [ModelConfig(layers=2, width=48, heads=4, context=32, vocabulary=320), config_of("qwen3")]
)
def test_weights_that_grow_too_large_for_8_bits_show_in_the_loss(config: ModelConfig) -> None:
    torch.manual_seed(5)
    model = build(config)
    model.initialize()
    model.bfloat16()
    tokens = torch.randint(1, config.vocabulary, (2, config.context + 1))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    small = rounding(model, tokens)
    exact = build(config)
    exact.load_state_dict({name: one.float() for name, one in model.state_dict().items()})
    with torch.no_grad():
        wanted = abs(float(model(tokens)) - float(exact(tokens))) / float(exact(tokens))
    assert small == pytest.approx(wanted, rel=1e-2, abs=1e-6) and small < 0.002
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    with torch.no_grad():
        for one in model.parameters():
            if one.dim() == 2:
                one.mul_(16)
    assert rounding(model, tokens) > 4 * small


def looked(values: dict[int, float]) -> list[Seen]:
    return [replace(step, rounding=values.get(step.step)) for step in steps(400)]


def test_a_difference_that_grows_is_told_once_at_the_look_that_saw_it() -> None:
    chance = random.Random(2)
    values = {step: 2e-4 * math.exp(chance.gauss(0, 0.3)) for step in range(5, 401, 5)}
    assert rang(Watch(WatchConfig()), looked(values)) == []
    grown = values | {step: 4e-3 for step in range(300, 401, 5)}
    assert rang(Watch(WatchConfig()), looked(grown)) == [(300, "precision")]


def test_a_hundredth_is_too_much_from_the_first_look_on_also_over_a_restart() -> None:
    given, watch, resumed = (
        looked({step: 0.03 for step in range(5, 401, 5)}),
        Watch(WatchConfig()),
        Watch(WatchConfig()),
    )
    assert rang(watch, given[:12]) == [(5, "precision")]
    resumed.restore(watch.state())
    assert rang(resumed, given[12:]) == []
