"""Chance that random events exceed a limit within a time window. Independent losses are a Poisson process."""

from __future__ import annotations

import math
from bisect import bisect_left


def chance_of_more(limit: int, per_hour: float, window_hours: float, hours: float) -> float:
    """Return an upper bound for the chance of more than `limit` events in any `window_hours` of a campaign of `hours`.

    Either the first window has more, or a later event has `limit` others in the window before it. The number of others
    is Poisson with the same mean (Slivnyak), so the sum over all such events bounds the chance. The bound is exact for
    a campaign no longer than the window; else it is about twice what a simulation gives.
    """
    mean = per_hour * min(window_hours, hours)
    mean_afterwards = per_hour * hours - mean
    return min(
        1.0, _at_least(limit + 1, mean) + (mean_afterwards * _at_least(limit, mean) if mean_afterwards > 0 else 0.0)
    )


def limit_for(chance: float, per_hour: float, window_hours: float, hours: float) -> int:
    """Return the smallest limit that is exceeded with at most this probability."""
    # At twice the mean plus a thousand the tail is below 1e-300 (Bernstein).
    highest = 2 * math.ceil(per_hour * window_hours) + 1000
    return bisect_left(
        range(highest), True, key=lambda limit: chance_of_more(limit, per_hour, window_hours, hours) <= chance
    )


def _at_least(count: int, mean: float) -> float:
    """P(Poisson(mean) >= count), slightly overestimated: the terms after the first are summed as a geometric series."""
    if count <= mean:
        return 1.0
    if mean == 0:
        return 0.0
    first_term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    return min(1.0, first_term * (count + 1) / (count + 1 - mean))
