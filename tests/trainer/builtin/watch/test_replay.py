"""The search for silent data corruption: a rank that computes other bits is named, where anybody can tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from trainer.builtin.model import Transformer
from trainer.builtin.watch.replay import Digests, compute, verdict
from trainer.contract import ModelConfig

SOUND = Digests(7, 11, 11)
TOKENS = torch.arange(34).reshape(2, 17)


def model() -> Transformer:
    torch.manual_seed(3)
    return Transformer(ModelConfig(layers=2, width=32, heads=4, context=16, vocabulary=260))


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (Digests(7, 11, 12), "two runs of one micro batch differ"),
        (Digests(7, 13, 13), "its gradients differ from those of 3 ranks"),
        (Digests(8, 13, 13), "its gradients differ from those of 3 ranks"),
        (Digests(8, 11, 11), "its weights differ from those of 3 ranks"),
    ],
)
def test_one_of_four_is_named_with_what_it_does_differently(odd: Digests, why: str) -> None:
    found = verdict([SOUND, SOUND, odd, SOUND])
    assert set(found.named) == {2} and why.split(" ")[0] in found.told


def test_equal_bits_say_nothing() -> None:
    assert verdict([SOUND] * 256) == ({}, "")


def test_of_two_ranks_that_only_differ_from_each_other_none_is_named() -> None:
    found = verdict([SOUND, Digests(7, 12, 12)])
    assert not found.named and "nobody can tell" in found.told
    assert set(verdict([SOUND, Digests(7, 12, 13)]).named) == {1}, "but one that differs from itself is"


def test_a_replay_leaves_gradients_and_random_state_and_every_bit_of_it_counts() -> None:
    engine = SimpleNamespace(module=model())
    weight = engine.module.embedding.weight
    engine.module(TOKENS).backward()
    before, random_state = weight.grad.clone(), torch.get_rng_state()
    first = compute(engine, TOKENS, together=False)
    assert first == compute(engine, TOKENS, together=False) and first.first == first.again
    assert torch.equal(weight.grad, before) and torch.equal(torch.get_rng_state(), random_state)
    with torch.no_grad():
        weight.view(-1).view(torch.int32)[5] ^= 1
    other = compute(engine, TOKENS, together=False)
    assert other.weights != first.weights and other.first != first.first


def test_a_gradient_that_differs_in_its_second_run_only_is_seen() -> None:
    engine, runs = SimpleNamespace(module=model()), []

    def flip(gradient: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        changed = gradient.clone()
        if len(runs) == 2:
            changed.view(-1).view(torch.int32)[9] ^= 1
        return changed

    engine.module.embedding.weight.register_hook(flip)
    found = compute(engine, TOKENS, together=False)
    assert len(runs) == 2 and found.first != found.again


def test_a_weight_that_the_batch_does_not_use_is_no_trouble() -> None:
    spare = model()
    spare.register_parameter("spare", torch.nn.Parameter(torch.zeros(3)))
    engine = SimpleNamespace(module=spare)
    assert compute(engine, TOKENS, together=False).first == compute(engine, TOKENS, together=False).again != 0
