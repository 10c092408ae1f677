"""Slow faults for `tests.bench.watch`: drawn streams whose noise is fitted to a real run, with a fault or a healthy
change in each. No code of the detectors.

The real run is that of `watch_faults`: the small built-in model on this machine, past its fast first steps. Fitted are
the standard deviations of the logarithms of loss and norm around a cubic, and the correlation of neighbours. `student`
has the same scale and correlation, and the shocks of Student's t with three degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.bench.parts.watch_faults import train
from trainer.builtin.watch.detectors import Seen

LENGTH, ONSET, LASTS = 1600, 800, 500
BLOCKS = 80
EVALUATED_EVERY = 50
SKIPPED = 120
"""Steps of the real run whose fall is too steep for a cubic."""
Gain = Callable[[int], float]


def _rising(share: float) -> Gain:
    """Return a factor that grows by `share` percent a step."""
    return lambda since: (1 + share / 100) ** min(since, LASTS)


FAULTS: dict[str, tuple[Gain, Gain, Gain]] = {
    # By steps since the onset: factors of the training loss, of the held-out loss, of the norm.
    **{f"+{share} % a step": (_rising(share), _rising(share), lambda since: 1.0) for share in (0.1, 0.2, 0.4, 0.8)},
    "+5 %": (lambda since: 1.05, lambda since: 1.05, lambda since: 1.0),
    "+9 %": (lambda since: 1.09, lambda since: 1.0, lambda since: 1.0),
    "norm x 10 in 400": (lambda since: 1.0, lambda since: 1.0, lambda since: 10 ** (min(since, 400) / 400)),
    "norm x 4 in 200": (lambda since: 1.0, lambda since: 1.0, lambda since: 4 ** (min(since, 200) / 200)),
    "dead block": (lambda since: 1.0, lambda since: 1.0, lambda since: 1.0),
}
HEALTHY = ("nothing", "decay", "mix", "pause", "batch", "restart")


@dataclass(frozen=True)
class Noise:
    """Of the logarithms of loss and norm."""

    loss: float
    norm: float
    loss_correlation: float
    norm_correlation: float


def fitted(seed: int) -> Noise:
    """Train the small model once, and return the noise of its loss and norm."""
    logs = np.array([(math.log(step.loss), math.log(step.norm or 1.0)) for step in train(seed, None, 10**9)])[SKIPPED:]
    place = np.arange(len(logs))
    rest = logs - np.stack([np.polyval(np.polyfit(place, row, 3), place) for row in logs.T], axis=1)
    correlations = [max(0.0, float(np.corrcoef(row[1:], row[:-1])[0, 1])) for row in rest.T]
    deviations = rest.std(axis=0)
    return Noise(float(deviations[0]), float(deviations[1]), *correlations)


def _drawn(chance: np.random.Generator, kind: str, scale: float, correlation: float, count: int) -> np.ndarray:
    shocks = chance.standard_t(3, count) if kind == "student" else chance.standard_normal(count)
    shocks *= scale * math.sqrt(1 - correlation**2)
    row = np.empty(count)
    value = 0.0
    for index, shock in enumerate(shocks):
        value = correlation * value + shock
        row[index] = value
    return row


def stream(seed: int, kind: str, noise: Noise, change: str) -> Iterator[Seen]:
    """Yield the steps of one drawn run, with a fault or a healthy change from `ONSET` on."""
    chance = np.random.default_rng([seed, *change.encode(), *kind.encode()])
    losses = _drawn(chance, kind, noise.loss, noise.loss_correlation, LENGTH)
    norms = _drawn(chance, kind, noise.norm, noise.norm_correlation, LENGTH)
    held_out_noise = 0.002 * chance.standard_normal(LENGTH)
    has_blocks = change in ("nothing", "dead block")
    shares = np.exp(0.1 * chance.standard_normal((LENGTH, BLOCKS if has_blocks else 0)))
    dead = int(chance.integers(BLOCKS))
    training, evaluated, norm_gain = FAULTS.get(change, (lambda since: 1.0,) * 3)
    for step in range(1, LENGTH + 1):
        since = step - ONSET
        if change == "pause" and 0 <= since < 30:
            continue
        level = 3.2 + 4 * math.exp(-step / 60) + 0.6 * math.exp(-step / 900)
        rate, width, growth, block = 2e-3 * min(1.0, step / 100), 1.0, 1 + 3 * math.exp(-step / 40), shares[step - 1]
        gains = (1.0, 1.0, 1.0)
        if since >= 0:
            gains = training(since), evaluated(since), norm_gain(since)
            if change == "decay":
                rate *= 0.5 * (1 + math.cos(math.pi * since / (LENGTH - ONSET + 1)))
                gains = (1 - 0.04 * since / ONSET, 1 - 0.04 * since / ONSET, 1 + 0.5 * since / ONSET)
            if change == "mix":
                gains = (0.85, 0.9, 1.2)
            if change == "batch":
                width, growth = 2.0, growth * 1.8
            if change == "dead block":
                block[dead] = 1e-4
        steps = [step]
        if change == "restart" and step == ONSET:
            steps = list(range(ONSET - 60, ONSET + 1))
        for number in steps:
            yield Seen(
                step=number,
                loss=level * gains[0] * math.exp(width * losses[number - 1]),
                rate=rate,
                norm=growth * gains[2] * math.exp(width * norms[number - 1]),
                layers=tuple((f"block {index}", float(share)) for index, share in enumerate(block)),
                held_out=level * gains[1] * math.exp(held_out_noise[step - 1]) if step % EVALUATED_EVERY == 0 else None,
            )
