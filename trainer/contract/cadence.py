"""The checkpoint interval: Daly's higher-order optimum, bounded and rounded to whole steps.

Notation, all in seconds: C one save stops training, mu mean time between failures of the whole job, D downtime per
failure, R reload, T from one save to the next, the save included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_OVERHEAD = 0.01
"""Largest share of the training time that saves may cost, stall and dip together."""
TOO_DEAR = 0.035
"""Share of the training time above which a warning says that saves are too expensive, even with a fixed interval."""
MAX_WORK_AT_RISK_S = 3600.0
"""Upper bound of the interval: the failure rate is only an estimate."""
MIN_SAVES = 10
"""Fewest saves in a run, even if it is shorter than Daly's period."""
_LARGEST_EXPONENT = 350.0
"""Two exponentials of this size can be multiplied without an overflow."""


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

    Exact for exponential failures during work, save and reload; same source as `daly_period`. An interval so long that
    no attempt ever finishes it has efficiency 0.
    """
    exponent = period_s / mtbf_s
    if max(exponent, reload_s / mtbf_s) > _LARGEST_EXPONENT:
        return 0.0
    return (period_s - save_s) / ((mtbf_s + downtime_s) * math.exp(reload_s / mtbf_s) * math.expm1(exponent))


@dataclass(frozen=True)
class Cadence:
    """The chosen interval between saves and its derivation."""

    every_steps: int
    daly_period_s: float
    daly_steps: float
    """Daly's work between saves, in steps, before bounds and rounding."""
    fewest_steps: int
    """Lower bound: overhead, and the background writer must finish before the next save."""
    most_steps: int
    """Upper bound: work at risk, and at least `MIN_SAVES` saves in a run."""
    bound: str
    """The rule that decided: `daly`, `fewest` or `most`."""


def choose(
    *, step_s: float, steps: int, stall_s: float, write_s: float, mtbf_s: float, restart_s: float = 0.0
) -> Cadence:
    """Choose the steps between saves on the local tier.

    `stall_s` stops training (the host copy); `write_s` runs in the background until the save is durable. The choice is
    the more efficient of the two whole numbers of steps around Daly's optimum.
    """
    minimum = max(1, math.ceil(stall_s / (MAX_OVERHEAD * step_s)), math.ceil(write_s / step_s))
    maximum = max(1, min(steps // MIN_SAVES, int(MAX_WORK_AT_RISK_S / step_s)))
    minimum = min(minimum, steps)
    period = daly_period(stall_s, mtbf_s)
    exact = (period - stall_s) / step_s
    floor_steps = max(1, math.floor(exact))

    def gain(interval: int) -> float:
        return efficiency(interval * step_s + stall_s, stall_s, mtbf_s, restart_s)

    best = max((floor_steps, floor_steps + 1), key=gain)
    # The lower bound wins over the upper one: the next save cannot start before the last one is durable.
    interval, bound = best, "daly"
    if interval > maximum:
        interval, bound = maximum, "most"
    if interval < minimum:
        interval, bound = minimum, "fewest"
    return Cadence(
        every_steps=interval,
        daly_period_s=period,
        daly_steps=exact,
        fewest_steps=minimum,
        most_steps=maximum,
        bound=bound,
    )
