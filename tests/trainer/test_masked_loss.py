"""The loss of masked data: only what counts, and the same over ranks and micro batches as of one process."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from tests.trainer.agents import World, run
from tests.trainer.builtin.data.chats import CHATML, CONTEXT, conversations, recipe, row_of, tokenizer_in
from tests.trainer.data_sets import quiet
from trainer.builtin.checkpoint.convert.export import export
from trainer.builtin.data.prepare.prepare import make
from trainer.builtin.data.reader import Reader, load_manifest
from trainer.builtin.evaluate import evaluate
from trainer.builtin.model import Transformer, recompute
from trainer.client.bivouac_data.reader import folder_opener
from trainer.contract import CheckpointConfig, DataConfig, ModelConfig, OptimizerConfig, TrainConfig

STEPS, BATCH, RATE = 12, 4, 3e-3
Chat = list[dict[str, str]]


def by_hand(logits: Tensor, stored: np.ndarray) -> Tensor:
    """The mean over the tokens that count, of each one's negative log probability."""
    found = []
    for scores, row in zip(logits.log_softmax(-1), stored.tolist(), strict=True):
        places = [place for place, token in enumerate(row[1:]) if token >= 0]
        found.append(-scores[places, [row[place + 1] for place in places]])
    return torch.cat(found).mean()


def plain(stored: np.ndarray) -> Tensor:
    return torch.tensor([[token if token >= 0 else -1 - token for token in row] for row in stored.tolist()])


def test_masked_targets_count_neither_in_the_sum_nor_in_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = Transformer(ModelConfig(layers=1, width=32, heads=2, context=24, vocabulary=258))
    tokens = torch.randint(0, 258, (2, 25))
    stored = torch.where(torch.rand(tokens.shape) < 0.7, -1 - tokens, tokens).numpy()
    stored[0, 9:] = -1 - plain(stored)[0, 9:].numpy()  # whole parts of the loss without any that counts
    wanted = by_hand(model.logits(tokens[:, :-1]), stored)
    gradients = torch.autograd.grad(wanted, list(model.parameters()))
    monkeypatch.setattr(recompute, "LEAST_ROWS", 1)
    for positions in (1, 7, 1000):
        monkeypatch.setattr(recompute, "LOGITS_AT_ONCE", positions * 258)
        loss = model(torch.from_numpy(stored))
        torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
        torch.testing.assert_close(torch.autograd.grad(loss, list(model.parameters())), gradients, rtol=1e-4, atol=1e-7)


class Alone(NamedTuple):
    """What a plain loop over whole global batches comes to."""

    losses: list[float]
    means: list[float]
    """Of each step, the mean of its micro batches' means."""
    norms: list[float]
    held_out: float


def one_process(config: TrainConfig, reader: Reader) -> Alone:
    model = Transformer(config.model)
    torch.manual_seed(config.seed)
    model.initialize()
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    rest = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    losses, means, norms = [], [], []
    for step in range(STEPS):
        stored = reader.stored(range(step * BATCH, (step + 1) * BATCH))
        logits = model.logits(plain(stored)[:, :-1])
        loss = by_hand(logits, stored)
        each = [float(by_hand(logits.detach()[[row]], stored[[row]])) for row in range(BATCH)]
        optimizer.zero_grad()
        loss.backward()
        norms.append(
            float(
                torch.nn.utils.get_total_norm(
                    [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
                )
            )
        )
        optimizer.step()
        losses.append(float(loss.detach()))
        means.append(sum(each) / BATCH)
    with torch.no_grad():
        held = reader.held_out(config.evaluate_batches * config.micro_batch)
        return Alone(losses, means, norms, float(by_hand(model.logits(plain(held)[:, :-1]), held)))


def supervised(folder: Path, chats: list[Chat], context: int = CONTEXT) -> tuple[Path, TrainConfig, Reader]:
    """Prepare conversations; return their data, a training on it, and its reader."""
    data, rows = folder / "data", [row_of(chat) for chat in chats]
    manifest = make(recipe(folder / "text", rows, tokenizer_in(folder), context=context), data, quiet, 1)
    digest = hashlib.sha256((data / "manifest.json").read_bytes()).hexdigest()
    model = ModelConfig(
        layers=2, width=32, heads=2, context=context, vocabulary=manifest.vocabulary, document_attention=True,
        reset_positions=True, end_of_document=manifest.end_of_document,
    )  # fmt: skip
    config = TrainConfig(
        campaign="tiny", model=model, data=DataConfig(manifest_digest=digest), steps=STEPS, global_batch=BATCH,
        micro_batch=1, evaluate_every=STEPS, evaluate_batches=5, precision="float32",
        optimizer=OptimizerConfig(learning_rate=RATE, minimum_learning_rate=RATE, warmup_steps=0, clip=1e6),
        checkpoint=CheckpointConfig(every_steps=STEPS),
    )  # fmt: skip
    return data, config, Reader(load_manifest(data, digest), folder_opener(data), context, config.data.seed)


def test_two_ranks_with_two_micro_batches_each_train_as_one_process_over_the_whole_batch(tmp_path: Path) -> None:
    data, config, reader = supervised(tmp_path, conversations(150))
    wanted = one_process(config, reader)
    differ = [abs(one - other) > 2e-3 for one, other in zip(wanted.losses, wanted.means, strict=True)]
    assert any(differ), "a mean of means would pass"

    attempt = run(World(tmp_path / "world", data, config), 1, nodes=1, ranks_per_node=2)

    assert attempt.agents[0].returncode == 0, attempt.log(0).read_text()
    losses = attempt.losses()
    assert [losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted.losses, rel=2e-5)
    assert losses[STEPS] < 0.8 * losses[1] and losses[1] == pytest.approx(math.log(config.model.vocabulary), rel=0.1)
    (told,) = attempt.events("evaluated")
    assert told["loss"] == pytest.approx(wanted.held_out, rel=2e-5)
    folder = attempt.world.shared / "tiny" / f"step-{STEPS:08d}"
    answer = evaluate(folder, config, data)
    assert answer["equal"], answer

    export(folder, config, data, tmp_path / "exported")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert theirs.chat_template == CHATML and theirs.eos_token == "<|im_end|>"
    stops = transformers.GenerationConfig.from_pretrained(tmp_path / "exported").eos_token_id
    assert set(theirs.convert_ids_to_tokens(stops)) == {"<|im_end|>", "<|endoftext|>"}
