"""The search for silent data corruption: a rank that computes other bits is named, where anybody can tell."""

from __future__ import annotations

import math
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from trainer.builtin.model import Transformer
from trainer.builtin.watch.replay import Digests, compute, sketch, verdict
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
    assert verdict([SOUND] * 256) == ({}, "", "")


def test_of_two_ranks_that_only_differ_from_each_other_none_is_named() -> None:
    found = verdict([SOUND, Digests(7, 12, 12)])
    assert not found.named and "nobody can tell" in found.told
    assert set(verdict([SOUND, Digests(7, 12, 13)]).named) == {1}, "but one that differs from itself is"


def test_a_replay_leaves_gradients_and_random_state_and_every_bit_of_it_counts() -> None:
    engine = SimpleNamespace(module=model())
    weight = engine.module.embedding.weight
    engine.module(TOKENS).backward()
    before, random_state = weight.grad.clone(), torch.get_rng_state()
    first = compute(engine, TOKENS, all_ranks=False)
    assert first == compute(engine, TOKENS, all_ranks=False) and first.first == first.again
    assert torch.equal(weight.grad, before) and torch.equal(torch.get_rng_state(), random_state)
    with torch.no_grad():
        weight.view(-1).view(torch.int32)[5] ^= 1
    other = compute(engine, TOKENS, all_ranks=False)
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
    found = compute(engine, TOKENS, all_ranks=False)
    assert len(runs) == 2 and found.first != found.again


def test_a_weight_that_the_batch_does_not_use_is_no_trouble() -> None:
    spare = model()
    spare.register_parameter("spare", torch.nn.Parameter(torch.zeros(3)))
    engine = SimpleNamespace(module=spare)
    assert compute(engine, TOKENS, all_ranks=False).first == compute(engine, TOKENS, all_ranks=False).again != 0


def noisy(noise: float) -> tuple[SimpleNamespace, list[tuple[bool, bool]]]:
    """Return an engine whose gradients differ in each run, like those of flash attention, and a list that gets the
    modes of torch in each backward pass: deterministic, with warnings only."""
    module, modes = model(), list[tuple[bool, bool]]()

    def backward(gradient: torch.Tensor) -> torch.Tensor:
        enabled = torch.are_deterministic_algorithms_enabled()
        modes.append((enabled, torch.is_deterministic_algorithms_warn_only_enabled()))
        return gradient * (1 + noise * torch.randn_like(gradient))

    module.blocks[0].register_forward_hook(lambda block, inputs, output: output.register_hook(backward) and None)
    return SimpleNamespace(module=module), modes


def digests_of(ranks: int, noise: float = 1e-6) -> list[Digests]:
    engine, _ = noisy(noise)
    return [compute(engine, TOKENS, all_ranks=False, kernels="training") for _ in range(ranks)]


def test_a_replay_insists_on_deterministic_kernels_in_the_backward_pass_too() -> None:
    """With `warn_only` torch keeps the attention kernels that add in no fixed order. Without a GPU, what torch is asked
    for is all that can be seen."""
    engine, modes = noisy(0.0)
    compute(engine, TOKENS, all_ranks=False)
    compute(engine, TOKENS, all_ranks=False, kernels="training")
    assert modes == [(True, False), (True, False), (False, False), (False, False)]


def test_a_kernel_without_a_deterministic_version_is_named_and_no_rank() -> None:
    refusal = RuntimeError("put_ does not have a deterministic implementation, but you set ...\nYou can turn it off")
    engine = SimpleNamespace(module=Mock(side_effect=refusal, parameters=model().parameters))
    judged = verdict([compute(engine, TOKENS, all_ranks=False), SOUND])
    assert "put_" in judged.refusal and not judged.named and not judged.told
    assert not torch.are_deterministic_algorithms_enabled()


def test_sound_ranks_whose_kernels_add_in_no_fixed_order_are_not_accused() -> None:
    digests = digests_of(4)
    assert len({tuple(run) for digest in digests for run in digest.sketches}) == 8, "no two runs are equal"
    assert verdict(digests) == ({}, "", "") == verdict(digests_of(4, noise=0.0))


@pytest.mark.parametrize("wrong_runs", [1, 2])
def test_a_rank_beyond_the_others_spread_is_named(wrong_runs: int) -> None:
    digests = digests_of(4)
    runs = list(digests[2].sketches)
    for number in range(wrong_runs):
        runs[number] = [value + 1e-3 * math.hypot(*runs[number]) / 16 for value in runs[number]]
    digests[2] = digests[2]._replace(sketches=(runs[0], runs[1]))
    assert set(verdict(digests).named) == {2}
    of_two = verdict(digests[2:])
    assert not of_two.named and "nobody can tell" in of_two.told


def test_a_sketch_keeps_distances_and_sees_one_element() -> None:
    gradient, noise = (torch.randn(3, 70_001, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    distance = math.dist(sketch([gradient, None]), sketch([gradient + 1e-3 * noise]))
    assert distance == pytest.approx(1e-3 * noise.norm().item(), rel=0.3)
    flipped = gradient.clone()
    flipped[1, 5] += 3.0
    assert math.dist(sketch([gradient]), sketch([flipped])) == pytest.approx(3, abs=0.01)


@pytest.mark.parametrize("ranks", [1, 4])
def test_runs_that_are_far_apart_are_never_within_the_tolerance_they_make_themselves(ranks: int) -> None:
    apart = Digests(0, 0, 0, ([1.0] * 256, [100.0] * 256))
    near = Digests(0, 0, 0, ([1.0] * 256, [1.001] * 256))
    assert "nobody can tell" in verdict([apart] * ranks).told
    assert verdict([near] * ranks) == ({}, "", "")
