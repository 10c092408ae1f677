"""How long AWS takes for its works. A rehearsal may ask for these times at a fraction; else a work takes a moment."""

from __future__ import annotations

from infra.rehearsal.aws.strict.settings import Strictness

MINUTES: dict[str, tuple[float, float]] = {
    "cluster made": (8, 15),
    "cluster deleted": (5, 12),
    "file system made": (10, 30),
    "file system deleted": (5, 20),
    "link made": (2, 8),
    "link deleted": (1, 5),
    "instance boots": (1, 2),
    "GPU instance boots": (10, 20),
    "instance ends": (1, 3),
    "GPU instance ends": (10, 20),
    "image made": (8, 20),
    "NAT gateway made": (1, 3),
    "NAT gateway deleted": (1, 5),
    "endpoint deleted": (1, 8),
    "add-on deleted": (1, 5),
}
"""Work -> shortest and longest, as operators of such clusters report."""


def seconds(strictness: Strictness, work: str, quick: float, number: int) -> float:
    """Return what the `number`-th work of its sort takes; `quick` where no scale was asked for."""
    shortest, longest = MINUTES[work]
    if strictness.time_scale is None:
        return quick
    minutes = shortest + (longest - shortest) * strictness.chance("takes", work, number)
    return 60 * minutes / strictness.time_scale
