"""A model by name trains as `transformers` computes it: logits, documents, recomputation, every ZeRO stage."""

from __future__ import annotations

import copy
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
import torch.nn.functional as F
import transformers
from torch import Tensor

from tests.trainer.builtin.model.families import CONTEXT, EACH, END, VOCABULARY, config_of
from trainer.builtin.engine import build_engine, initialize_distributed
from trainer.builtin.model import NamedModel, build
from trainer.contract import ModelConfig, RecomputeConfig, TrainConfig
from trainer.errors import ConfigError


def built(config: ModelConfig, recompute: RecomputeConfig | None = None) -> NamedModel:
    torch.manual_seed(3)
    model = build(config, recompute)
    assert isinstance(model, NamedModel)
    model.initialize()
    return model


def tokens_of(config: ModelConfig, count: int = 2) -> Tensor:
    made = torch.Generator().manual_seed(4)
    return torch.randint(1, config.vocabulary, (count, config.context + 1), generator=made)


def reference(model: NamedModel) -> Any:
    """Hugging Face's own model with the same weights, by way of its own files."""
    described = transformers.AutoConfig.for_model(**copy.deepcopy(model.config.config))
    other = transformers.AutoModelForCausalLM.from_config(described, attn_implementation="eager").eval()
    other.load_state_dict(model.network.state_dict())
    return other


@pytest.mark.parametrize("family", EACH)
def test_the_loss_and_its_gradients_are_those_of_transformers(family: str) -> None:
    config = config_of(family)
    model, tokens = built(config), tokens_of(config)
    theirs = reference(model)

    loss = model(tokens)
    loss.backward()
    scores = theirs(tokens[:, :-1]).logits
    wanted = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
    wanted.backward()

    torch.testing.assert_close(model.logits(tokens[:, :-1]), scores, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
    gradients = {name: one.grad for name, one in theirs.named_parameters()}
    for name, one in model.network.named_parameters():
        torch.testing.assert_close(one.grad, gradients[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_packed_document_has_the_logits_that_it_has_alone(family: str) -> None:
    config = config_of(family, document_attention=True, reset_positions=True, end_of_document=END)
    model = built(config).eval()
    tokens = tokens_of(config, 1)[:, :-1]
    ends = [6, 7, 19]
    tokens[:, ends] = END
    alone = built(config_of(family)).eval()
    with torch.no_grad():
        packed = model.logits(tokens)
        begin = 0
        for end in (*ends, CONTEXT - 1):
            piece = alone.logits(tokens[:, begin : end + 1])
            torch.testing.assert_close(packed[:, begin : end + 1], piece, rtol=1e-4, atol=1e-5)
            begin = end + 1
        assert not torch.allclose(alone.logits(tokens)[:, -1], packed[:, -1], atol=1e-3), "the mask does nothing"


def test_positions_that_begin_anew_keep_no_documents_apart() -> None:
    config = config_of("llama", reset_positions=True, end_of_document=END)
    model = built(config).eval()
    tokens = tokens_of(config, 1)[:, :-1]
    tokens[:, 10] = END
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % config.vocabulary
    with torch.no_grad():
        assert not torch.equal(model.logits(tokens)[:, -1], model.logits(changed)[:, -1])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_recomputing_changes_no_bit(kind: torch.dtype) -> None:
    config = config_of("llama")
    tokens = tokens_of(config)
    found: list[tuple[Tensor, list[Tensor | None]]] = []
    calls: list[int] = []
    for policy in (None, RecomputeConfig(policy="full"), RecomputeConfig(policy="selective", every=2)):
        model = built(config, policy).to(kind)
        entered: list[Any] = []
        # Recomputing ends as soon as the backward pass has what it needs: within the block.
        model.network.model.layers[0].mlp.register_forward_pre_hook(lambda *_, seen=entered: seen.append(1))
        loss = model(tokens)
        loss.backward()
        calls.append(len(entered))
        found.append((loss.detach(), [parameter.grad for parameter in model.parameters()]))
    assert calls == [1, 2, 2], "a layer is computed once, or again in the backward pass"
    for loss, gradients in found[1:]:
        assert torch.equal(loss, found[0][0])
        for one, other in zip(gradients, found[0][1], strict=True):
            assert one is not None and other is not None and torch.equal(one, other)


def test_the_rotations_stay_exact_in_bfloat16() -> None:
    model = built(config_of("llama")).to(torch.bfloat16)
    frequency = model.network.model.rotary_emb.inv_freq
    exact = built(config_of("llama")).network.model.rotary_emb.inv_freq
    assert frequency.dtype == torch.float32 and torch.equal(frequency, exact)
    assert not torch.equal(frequency, frequency.bfloat16().float()), "rounding would show"
    assert next(model.parameters()).dtype == torch.bfloat16


def of_a_function(config: ModelConfig) -> Any:
    described = transformers.GPTNeoXConfig(
        vocab_size=config.vocabulary, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    return transformers.GPTNeoXForCausalLM(described)


def no_model(config: ModelConfig) -> int:
    return 3


def test_a_function_gives_the_model() -> None:
    config = ModelConfig(name=f"{__name__}:of_a_function", parameters=40_000, vocabulary=300, context=CONTEXT)
    model = built(config)
    assert isinstance(model.network, transformers.GPTNeoXForCausalLM)
    assert torch.isfinite(model(tokens_of(config)))


@pytest.mark.parametrize("name", ["nowhere.at_all:model", f"{__name__}:missing", f"{__name__}:no_model"])
def test_a_function_that_gives_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no such function|no model of transformers"):
        build(ModelConfig(name=name, parameters=1, vocabulary=300))


STAGES = (0, 1, 2, 3)
CASES = (("llama", "bfloat16"), ("qwen3", "float32"))
"""Untied and tied; in both precisions."""


def begun(rank: int, port: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu"}
    torch.set_num_threads(1)
    initialize_distributed(TrainConfig(campaign="c", steps=3, global_batch=2, collective_timeout_s=300))
    import deepspeed

    found = {}
    for family, precision in CASES:
        for stage in STAGES:
            config = TrainConfig(
                campaign="c", model=config_of(family), steps=3, global_batch=2, micro_batch=1, zero_stage=stage,
                precision=precision, recompute=RecomputeConfig(policy="full"),
            )  # fmt: skip
            engine, weights = build_engine(config, 2), {}
            held = sum(parameter.numel() for parameter in engine.module.parameters())
            for name, one in engine.module.named_parameters():
                with deepspeed.zero.GatheredParameters(one, enabled=stage == 3):
                    weights[name] = one.detach().clone()
            losses, words = [], torch.Generator().manual_seed(rank)
            for _ in range(3):
                loss = engine(torch.randint(0, VOCABULARY, (1, CONTEXT + 1), generator=words))
                engine.backward(loss)
                engine.step()
                losses.append(float(loss.detach()))
            frequency = engine.module.network.model.rotary_emb.inv_freq.clone()
            found[family, stage] = {"weights": weights, "losses": losses, "frequency": frequency, "held": held}
    torch.save(found, folder / f"{rank}.pt")


@pytest.mark.nightly
def test_every_zero_stage_begins_with_the_same_weights_and_trains_alike(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.spawn(begun, (port, tmp_path), nprocs=2)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        for family, precision in CASES:
            first, near = found[family, 0], 1e-6 if precision == "float32" else 2e-2
            assert found[family, 3]["held"] == 0 < first["held"], "stage 3 spreads every parameter"
            for stage in STAGES[1:]:
                other = found[family, stage]
                assert other["weights"].keys() == first["weights"].keys()
                assert all(torch.equal(one, first["weights"][name]) for name, one in other["weights"].items()), stage
                assert torch.equal(other["frequency"], first["frequency"])
                assert other["losses"] == pytest.approx(first["losses"], rel=near)
