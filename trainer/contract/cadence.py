"""How often to save: Daly's higher-order optimum, bounded and rounded to whole steps.

Notation: C seconds that one save stops training, mu mean seconds between failures of the whole job, D seconds of
downtime per failure, R seconds of reload, T seconds from one save to the next, the save included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_OVERHEAD = 0.01
"""The chosen interval costs at most this part of the training time, stall and dip together."""
TOO_DEAR = 0.035
"""Above this part saving is too dear, whoever chose the interval: it is said aloud."""
MAX_WORK_AT_RISK_S = 3600.0
"""However rare failures are, no more than an hour of work is at risk: the failure rate is only an estimate."""
MIN_SAVES = 10
"""A run shorter than Daly's period still saves so often."""
_LARGEST_EXPONENT = 350.0
"""Of which two may be multiplied before a float overflows."""


def daly_period(save_s: float, mtbf_s: float) -> float:
    """T = sqrt(2 C mu) [1 + (1/3) sqrt(C / 2 mu) + (1/9) (C / 2 mu)] for C < 2 mu, else mu + C.

    Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
    Generation Computer Systems 22 (2006) 303-312, equation 37; here with the save counted in T.
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s + save_s
    ratio = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9)


def efficiency(period_s: float, save_s: float, mtbf_s: float, downtime_s: float = 0.0, reload_s: float = 0.0) -> float:
    """eff(T) = (T - C) / [(mu + D) e^(R/mu) (e^(T/mu) - 1)]: useful time / time, in 0..1.

    Exact for exponential failures that may fall into work, save and reload; same source as `daly_period`. An
    interval so long that no attempt would ever finish it has efficiency 0.
    """
    exponent = period_s / mtbf_s
    if max(exponent, reload_s / mtbf_s) > _LARGEST_EXPONENT:
        return 0.0
    return (period_s - save_s) / ((mtbf_s + downtime_s) * math.exp(reload_s / mtbf_s) * math.expm1(exponent))


@dataclass(frozen=True)
class Cadence:
    """The chosen distance between saves and why."""

    every_steps: int
    daly_period_s: float
    daly_steps: float
    """Daly's work between saves, in steps, before bounds and rounding."""
    fewest_steps: int
    """Lower bound: overhead, and the background writer must be done before the next save."""
    most_steps: int
    """Upper bound: work at risk, and at least `MIN_SAVES` saves in a run."""
    bound: str
    """Which rule decided: `daly`, `fewest` or `most`."""


def choose(
    *, step_s: float, steps: int, stall_s: float, write_s: float, mtbf_s: float, restart_s: float = 0.0
) -> Cadence:
    """Steps between saves on the local tier.

    `stall_s` stops training (the host copy), `write_s` runs in the background until the save is durable. Of the two
    whole numbers of steps around Daly's optimum the one with the better exact efficiency is taken.
    """
    fewest = max(1, math.ceil(stall_s / (MAX_OVERHEAD * step_s)), math.ceil(write_s / step_s))
    most = max(1, min(steps // MIN_SAVES, int(MAX_WORK_AT_RISK_S / step_s)))
    fewest = min(fewest, steps)
    period = daly_period(stall_s, mtbf_s)
    exact = (period - stall_s) / step_s
    below = max(1, math.floor(exact))

    def gain(every: int) -> float:
        return efficiency(every * step_s + stall_s, stall_s, mtbf_s, restart_s)

    best = max((below, below + 1), key=gain)
    # The lower bound wins over the upper: a save that starts before the last one is durable can never be kept.
    every, bound = best, "daly"
    if every > most:
        every, bound = most, "most"
    if every < fewest:
        every, bound = fewest, "fewest"
    return Cadence(
        every_steps=every,
        daly_period_s=period,
        daly_steps=exact,
        fewest_steps=fewest,
        most_steps=most,
        bound=bound,
    )
