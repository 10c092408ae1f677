"""Recomputing changes memory alone: losses and gradients are those of a model that keeps everything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.builtin.model import Transformer, recompute
from trainer.contract import ModelConfig, RecomputeConfig

CONFIG = ModelConfig(layers=4, width=64, heads=4, context=32, vocabulary=300)


def trained(policy: RecomputeConfig | None, kind: torch.dtype) -> tuple[Tensor, dict[str, Tensor], int]:
    """Return loss, gradients, and the bytes that the forward pass kept."""
    torch.manual_seed(3)
    model = Transformer(CONFIG, policy).to(kind)
    tokens = torch.randint(0, CONFIG.vocabulary, (2, CONFIG.context + 1), generator=torch.Generator().manual_seed(4))
    kept = 0

    def keep(one: Tensor) -> Tensor:
        nonlocal kept
        kept += one.nbytes
        return one

    with saved_tensors_hooks(keep, lambda one: one):
        loss = model(tokens)
    loss.backward()
    return loss.detach(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}, kept


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_each_policy_keeps_less_and_computes_the_same_bits(kind: torch.dtype) -> None:
    loss, gradients, most = trained(None, kind)
    assert len(gradients) == len(list(Transformer(CONFIG).parameters()))
    for policy, every in (("selective", 1), ("full", 2), ("full", 1)):
        again, others, kept = trained(RecomputeConfig(policy=policy, every=every), kind)
        assert torch.equal(loss, again), policy
        assert all(torch.equal(one, others[name]) for name, one in gradients.items()), policy
        # What a selective block keeps is stored outside of these hooks.
        assert kept < most, (policy, every)
        if policy == "full":
            most = kept


class Largest(TorchDispatchMode):
    """The most elements of a tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple) else (made,):
            if isinstance(one, Tensor):
                self.elements = max(self.elements, one.numel())
        return made


def test_the_loss_in_parts_is_the_loss_and_never_holds_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    positions, width, vocabulary = 96, 16, 512
    hidden = torch.randn(positions, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    targets = torch.randint(0, vocabulary, (positions,))
    whole = F.cross_entropy(hidden @ weight.T, targets)
    wanted = torch.autograd.grad(whole / 3, (hidden, weight))  # as one of three micro batches
    monkeypatch.setattr(recompute, "LEAST_ROWS", 1)
    for rows in (1, 7, 32):
        monkeypatch.setattr(recompute, "LOGITS_AT_ONCE", rows * vocabulary)
        with Largest() as largest:
            loss = recompute.next_token_loss(hidden, weight, targets)
            found = torch.autograd.grad(loss / 3, (hidden, weight))
        assert largest.elements <= max(rows * vocabulary, weight.numel()), "scores of more positions at once"
        torch.testing.assert_close(loss, whole, rtol=1e-6, atol=0)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
    with Largest() as largest:
        monkeypatch.setattr(recompute, "LOGITS_AT_ONCE", positions * vocabulary)
        assert torch.equal(recompute.next_token_loss(hidden, weight, targets), whole)
    assert largest.elements == positions * vocabulary, "what fits is computed at once"


def test_the_backward_pass_scales_its_gradients_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all activations are alive: a float32 copy of all hidden gradients would come on top of them."""
    positions, width, vocabulary = 64, 256, 8
    monkeypatch.setattr(recompute, "LEAST_ROWS", 8)
    monkeypatch.setattr(recompute, "LOGITS_AT_ONCE", 1)
    hidden = torch.randn(positions, width).bfloat16().requires_grad_()
    loss = recompute.next_token_loss(hidden, torch.randn(vocabulary, width).bfloat16(), torch.zeros(positions).long())
    with Largest() as largest:
        torch.autograd.grad(loss * 3, hidden)
    assert largest.elements <= 8 * width, "whole tensors in the backward pass"


def test_the_gradient_of_64_parts_in_bfloat16_is_as_exact_as_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, vocabulary = torch.Generator().manual_seed(6), 512
    inputs = [torch.randn(size, 16, generator=draw).bfloat16() for size in (512, vocabulary)]
    targets = torch.randint(0, vocabulary, (512,), generator=draw)

    def gradient(rows: int, kind: torch.dtype = torch.bfloat16) -> Tensor:
        monkeypatch.setattr(recompute, "LEAST_ROWS", rows)
        monkeypatch.setattr(recompute, "LOGITS_AT_ONCE", 1)
        hidden, weight = (one.to(kind).requires_grad_() for one in inputs)
        return torch.autograd.grad(recompute.next_token_loss(hidden, weight, targets), weight)[0].float()

    exact = gradient(512, torch.float32)
    one_part, parts = ((gradient(rows) - exact).norm() for rows in (512, 8))
    assert parts < 1.2 * one_part, "a sum in bfloat16 has three times the error"
