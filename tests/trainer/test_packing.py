"""Documents packed into one sequence: what a token sees, and where it takes itself to be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from tests.trainer.builtin.model.operations import Operations
from trainer.builtin.model import Transformer, document_bounds
from trainer.builtin.model.documents import mask_of, sees
from trainer.contract import ModelConfig

END = 3


def model(**switches: bool) -> Transformer:
    torch.manual_seed(1)
    config = ModelConfig(layers=2, width=32, heads=2, context=24, vocabulary=258, end_of_document=END, **switches)
    return Transformer(config).eval()


def packed() -> torch.Tensor:
    """Three documents of 5, 8 and 11 tokens, each but the last with its end."""
    torch.manual_seed(2)
    tokens = torch.randint(4, 258, (2, 24))
    tokens[:, 4] = tokens[:, 12] = END
    return tokens


SPANS = (slice(0, 5), slice(5, 13), slice(13, 24))


def test_the_end_belongs_to_its_document_and_places_begin_after_it() -> None:
    tokens = torch.tensor([[7, END, 8, 9, END, END, 5], [END, 1, 2, END, 4, 5, 6]])
    document, place = document_bounds(tokens, END)
    assert document.tolist() == [[0, 0, 1, 1, 1, 2, 3], [0, 1, 1, 1, 2, 2, 2]]
    assert place.tolist() == [[0, 1, 0, 1, 2, 0, 0], [0, 0, 1, 2, 0, 1, 2]]


def test_with_both_switches_a_packed_document_is_as_if_it_were_alone() -> None:
    both, tokens = model(document_attention=True, reset_positions=True), packed()
    together = both.logits(tokens)
    for span in SPANS:
        torch.testing.assert_close(together[:, span], both.logits(tokens[:, span]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reset", [False, True])
def test_no_other_document_is_seen(reset: bool) -> None:
    bounded, tokens = model(document_attention=True, reset_positions=reset), packed()
    before = bounded.logits(tokens)
    changed = tokens.clone()
    changed[:, :4] = 100
    after = bounded.logits(changed)
    assert torch.equal(before[:, 5:], after[:, 5:]) and not torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(model().logits(tokens)[:, 5:], model().logits(changed)[:, 5:]), "nothing was to be hidden"


def test_without_an_end_the_switches_change_nothing() -> None:
    tokens = packed().clamp(min=4)
    plain, bounded = model().logits(tokens), model(document_attention=True, reset_positions=True).logits(tokens)
    torch.testing.assert_close(plain, bounded, rtol=1e-5, atol=1e-5)


def test_weights_learn_through_the_bounds() -> None:
    bounded = model(document_attention=True, reset_positions=True).train()
    bounded(packed()).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in bounded.parameters())


def test_the_rule_for_the_gpu_s_kernels_sees_what_the_mask_for_the_cpu_sees() -> None:
    """FlexAttention takes a rule in place of a mask: evaluated pair by pair it is the mask, and its result is equal."""
    made, length = torch.Generator().manual_seed(2), 130  # more than one of its blocks
    tokens = torch.randint(0, 6, (2, length), generator=made)
    document, _ = document_bounds(tokens, END)
    mask = mask_of(document, None, tokens, blockwise=False)
    rule = create_mask(sees(document), 2, 1, length, length, device="cpu")
    assert torch.equal(mask, rule) and not mask.all() and mask.any()

    query, key, value = (torch.randn(2, 2, length, 16, generator=made) for _ in range(3))
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    blocks = mask_of(document, None, tokens, blockwise=True)
    torch.testing.assert_close(flex_attention(query, key, value, block_mask=blocks), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [128, 130, 384, 1000])
@pytest.mark.parametrize("documents", [True, False])
def test_the_mask_of_blocks_is_torch_s_own(length: int, documents: bool) -> None:
    """Torch evaluates all pairs. Documents here are longer and shorter than a block."""
    made = torch.Generator().manual_seed(length)
    tokens = torch.where(torch.rand(3, length, generator=made) < torch.tensor([[0.5], [0.01], [0.0]]), END, END + 1)
    document = document_bounds(tokens, END)[0] if documents else None
    ours = mask_of(document, document_bounds(tokens, END)[1], tokens, blockwise=True)
    theirs = create_block_mask(sees(document), 3 if documents else 1, None, length, length, device="cpu")
    assert torch.equal(ours.to_dense(), theirs.to_dense()) and ours.shape == theirs.shape
    for kind in ("kv", "full_kv", "q", "full_q"):
        counts, wanted = (getattr(mask, f"{kind}_num_blocks") for mask in (ours, theirs))
        assert torch.equal(counts, wanted), kind
        for place in zip(*torch.nonzero(counts, as_tuple=True), strict=True):
            rows = [
                sorted(getattr(mask, f"{kind}_indices")[place][: counts[place]].tolist()) for mask in (ours, theirs)
            ]
            assert rows[0] == rows[1], kind


def test_the_mask_of_blocks_needs_no_tensor_of_all_pairs_and_waits_for_no_device() -> None:
    length = 8192
    tokens = torch.randint(0, 4000, (1, length), generator=torch.Generator().manual_seed(1))
    document, _ = document_bounds(tokens, END)
    with Operations() as operations:
        mask_of(document, None, tokens, blockwise=True)
    assert operations.largest <= 8 * length and operations.waits == []
