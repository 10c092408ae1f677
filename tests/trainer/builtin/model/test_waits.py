"""A micro batch asks the device for nothing: each answer would hold the process up until all work before it is done."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer.builtin.model.families import CONTEXT, EACH, END, config_of
from tests.trainer.builtin.model.operations import Operations
from trainer.builtin.model import build
from trainer.contract import ModelConfig, RecomputeConfig

SMALL = ModelConfig(layers=2, width=32, heads=2, context=CONTEXT, vocabulary=320)
BOUNDS: dict[str, dict[str, Any]] = {
    "whole sequences": {},
    "positions": {"reset_positions": True, "end_of_document": END},
    "documents": {"reset_positions": True, "document_attention": True, "end_of_document": END},
}


@pytest.mark.parametrize("policy", ["none", "selective", "full"])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("family", ["small", *EACH])
def test_a_micro_batch_waits_for_nothing(family: str, bounds: str, policy: Any) -> None:
    config = SMALL.model_copy(update=BOUNDS[bounds]) if family == "small" else config_of(family, **BOUNDS[bounds])
    model = build(config, RecomputeConfig(policy=policy))
    tokens = torch.randint(0, 320, (2, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
    with Operations() as operations:
        model(tokens).backward()
    assert operations.waits == []


def test_a_model_with_a_window_has_it_all_the_same() -> None:
    """Such a model needs the mask of `transformers`, and its look at the positions."""
    wide = config_of("mistral")
    narrow = wide.model_copy(update={"config": {**wide.config, "sliding_window": 8}})
    torch.manual_seed(1)
    model: Any = build(narrow).eval()
    tokens = torch.randint(0, 320, (1, CONTEXT), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 320
    with torch.no_grad():
        same = model.logits(tokens)[:, -1]
        assert torch.equal(same, model.logits(changed)[:, -1]), "two windows of 8 do not reach back 31 tokens"


def test_a_window_that_reaches_over_the_whole_context_is_no_window() -> None:
    wide = config_of("mistral")
    reaching = wide.model_copy(update={"config": {**wide.config, "sliding_window": CONTEXT}})
    tokens, logits = (
        torch.randint(0, 320, (1, CONTEXT), generator=torch.Generator().manual_seed(1)),
        list[torch.Tensor](),
    )
    for config in (wide, reaching):
        torch.manual_seed(1)
        model: Any = build(config).eval()
        with torch.no_grad(), Operations() as operations:
            logits.append(model.logits(tokens))
        assert operations.waits == []
    assert torch.equal(*logits)
