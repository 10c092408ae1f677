"""How likely chance alone passes a limit on events within any window of time: Poisson, as independent losses are."""

from __future__ import annotations

import math
from bisect import bisect_left


def chance_of_more(limit: int, per_hour: float, window_hours: float, hours: float) -> float:
    """Of more than `limit` events within any `window_hours` of a campaign of `hours`: a bound from above.

    Either the first window has more, or an event after it has `limit` others in the window before it. The others'
    number is Poisson too, with the same mean (Slivnyak), so the sum over all such events bounds the chance. Exact for
    a campaign no longer than the window; elsewhere about twice what a simulation gives.
    """
    mean = per_hour * min(window_hours, hours)
    later = per_hour * hours - mean
    return min(1.0, _at_least(limit + 1, mean) + (later * _at_least(limit, mean) if later > 0 else 0.0))


def limit_for(chance: float, per_hour: float, window_hours: float, hours: float) -> int:
    """The smallest limit that chance alone passes with at most this probability."""
    # At twice the mean and a thousand the tail is below 1e-300 (Bernstein).
    highest = 2 * math.ceil(per_hour * window_hours) + 1000
    return bisect_left(
        range(highest), True, key=lambda limit: chance_of_more(limit, per_hour, window_hours, hours) <= chance
    )


def _at_least(count: int, mean: float) -> float:
    """P(Poisson(mean) >= count), the terms after the first as a geometric series: a little above the truth."""
    if count <= mean:
        return 1.0
    if mean == 0:
        return 0.0
    first = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    return min(1.0, first * (count + 1) / (count + 1 - mean))
