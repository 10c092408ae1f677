"""How long AWS takes for its works. A rehearsal may ask for these times at a fraction; else a work takes a moment."""

from __future__ import annotations

from infra.rehearsal.aws.strict.settings import Strictness
from infra.tables import table

MINUTES: dict[str, tuple[float, float]] = table("infra.rehearsal.aws.strict", "durations")
"""Work -> shortest and longest."""


def seconds(strictness: Strictness, work: str, quick: float, number: int) -> float:
    """Return what the `number`-th work of its sort takes; `quick` where no scale was asked for."""
    shortest, longest = MINUTES[work]
    if strictness.time_scale is None:
        return quick
    minutes = shortest + (longest - shortest) * strictness.chance("takes", work, number)
    return 60 * minutes / strictness.time_scale
