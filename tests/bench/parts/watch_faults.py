"""Faults for `tests.bench.watch`: seeded runs of a small model, and drawn times of ranks. No code of the detectors."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import torch

from trainer.builtin.model import Transformer
from trainer.builtin.watch import replay
from trainer.builtin.watch.detectors import Seen
from trainer.contract import ModelConfig

MODEL = ModelConfig(layers=2, width=32, heads=4, context=32, vocabulary=320)
BATCH, STEPS = 8, 320
PEAK, WARM_UP = 2e-3, 20
RANKS, NOISE = 256, 0.02
REPLAY_EVERY = 20


class Text:
    """Tokens of a chain with Zipf's frequencies: one batch per step, equal for equal seeds."""

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng(seed)
        size = MODEL.vocabulary
        ranks = 1 / np.arange(1, size + 1)
        follow = np.stack([self._chance.permutation(ranks) ** 1.5 for _ in range(size)])
        self._follow = (follow / follow.sum(axis=1, keepdims=True)).cumsum(axis=1)

    def batch(self) -> np.ndarray:
        tokens = np.empty((BATCH, MODEL.context + 1), np.int64)
        tokens[:, 0] = self._chance.integers(0, MODEL.vocabulary, BATCH)
        draws = self._chance.random((BATCH, MODEL.context))
        for place in range(MODEL.context):
            chosen = (self._follow[tokens[:, place]] < draws[:, [place]]).sum(axis=1)
            tokens[:, place + 1] = np.minimum(chosen, MODEL.vocabulary - 1)
        return tokens


def train(seed: int, fault: str | None, onset: int) -> Iterator[Seen]:
    """Yield the steps of one run with a fault from the 1-based step `onset` on."""
    torch.manual_seed(seed)
    model, text, chance = Transformer(MODEL), Text(seed), random.Random(f"{seed} {fault}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95), weight_decay=0.1)
    last_hidden: list[float] = []
    model.norm.register_forward_pre_hook(
        lambda module, given: last_hidden.append(float(given[0].detach().square().mean()))
    )
    groups = {name: name.split(".")[1] if name.startswith("blocks") else name for name, _ in model.named_parameters()}
    for step in range(1, STEPS + 1):
        rate = PEAK * min(1.0, step / WARM_UP)
        used, tokens = rate, text.batch()
        if fault == "spike" and onset <= step < onset + 3:
            used = rate * chance.choice((15, 25, 40))
        if fault == "learning rate" and step >= onset:
            used = rate * (4 if seed % 2 else 10)
        if fault == "bad batch" and onset <= step < onset + 2:
            kind = seed % 3
            if kind == 0:
                tokens[:] = chance.randrange(MODEL.vocabulary)
            elif kind == 1:
                tokens = np.random.default_rng(seed).integers(0, MODEL.vocabulary, tokens.shape)
            else:
                tokens[:] = np.tile(tokens[0, :3], 22)[: MODEL.context + 1]
        if fault == "flipped bit" and step == onset:
            flip(model, chance)
        for group in optimizer.param_groups:
            group["lr"] = used
        loss = model(torch.from_numpy(tokens))
        optimizer.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        shares: dict[str, float] = {}
        weights: dict[str, float] = {}
        for name, one in model.named_parameters():
            assert one.grad is not None
            shares[groups[name]] = shares.get(groups[name], 0.0) + float(one.grad.square().sum()) * max(1.0, norm) ** 2
        optimizer.step()
        for name, one in model.named_parameters():
            weights[groups[name]] = weights.get(groups[name], 0.0) + float(one.detach().square().sum())
        counts = np.bincount(tokens.ravel()) / tokens.size
        value = math.nan if fault == "not a number" and step == onset else float(loss.detach())
        yield Seen(
            step=step,
            loss=value,
            rate=rate,
            norm=norm,
            layers=tuple((name, math.sqrt(square)) for name, square in shares.items()),
            weights=tuple((name, math.sqrt(square)) for name, square in weights.items()),
            activation=math.sqrt(last_hidden.pop()),
            entropy=float(-sum(part * math.log(part) for part in counts if part)),
        )


def flip(model: Transformer, chance: random.Random) -> None:
    """Flip a bit of the exponent of the largest weight of a matrix, which becomes 4 to 2^128 times as large.

    A flip that makes a weight smaller changes next to nothing, and nothing sees it."""
    parameters = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    bits = chance.choice(parameters).detach().view(-1).view(torch.int32)
    largest = int(bits.view(torch.float32).abs().argmax())
    zeros = [bit for bit in (24, 25, 26, 30) if not int(bits[largest]) >> bit & 1]
    bits[largest] ^= 1 << chance.choice(zeros)


def times(fault: str | None, seed: int, onset: int) -> Iterator[tuple[float, list[float]]]:
    """Yield (seconds of the step, of each rank's forward pass), drawn."""
    chance, victim = random.Random(f"{seed} times"), random.Random(seed).randrange(RANKS)
    for step in range(1, STEPS + 1):
        since = max(0, step - onset)
        forward = [0.06 * (1 + abs(chance.gauss(0, NOISE))) for _ in range(RANKS)]
        if fault == "sick rank":
            forward[victim] *= 1 + min(0.5, since * 0.01)
        slower = 1 + (since * 0.001 if fault == "slow decline" else 0)
        yield 3 * max(forward) * slower * (1 + abs(chance.gauss(0, 0.005))), forward


def wrong_rank(seed: int, onset: int) -> int | None:
    """Return the step of the first replay that names a rank which flips one bit of its gradient from `onset` on."""
    torch.manual_seed(seed)
    model = Transformer(MODEL)
    tokens = torch.from_numpy(Text(seed).batch())
    engine = type("Engine", (), {"module": model})
    victim = random.Random(seed).randrange(8)
    sound = replay.compute(engine, tokens, all_ranks=False)
    for step in range(REPLAY_EVERY, STEPS + 1, REPLAY_EVERY):
        digests = [sound] * 8
        if step >= onset:
            hooks = [model.embedding.weight.register_hook(lambda grad: _flipped(grad))]
            digests[victim] = replay.compute(engine, tokens, all_ranks=False)
            for hook in hooks:
                hook.remove()
        found = replay.verdict(digests)
        if found.told:
            assert set(found.named) == {victim}, found
            return step
    return None


def _flipped(gradient: torch.Tensor) -> torch.Tensor:
    changed = gradient.clone()
    changed.view(-1).view(torch.int32)[7] ^= 1
    return changed
