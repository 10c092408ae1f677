"""Thinning of long series: each piece keeps its lowest and highest value, so nothing is hidden."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from infra.report.model import Losses, LossPoint

MOST_POINTS = 3000
"""Approximate limit for all attempts together."""


def thinned(series: Sequence[Losses], most: int = MOST_POINTS) -> tuple[Losses, ...]:
    """Return short series unchanged. No piece spans repeated and new steps, so both stay visible."""
    total = sum(len(row.points) for row in series)
    if total <= most:
        return tuple(series)
    size = -(-2 * total // most)
    return tuple(row.model_copy(update={"points": tuple(_kept(row.points, size))}) for row in series)


def _kept(points: Sequence[LossPoint], size: int) -> Iterator[LossPoint]:
    for _, group in groupby(points, key=lambda point: point.repeated):
        run = list(group)
        for begin in range(0, len(run), size):
            piece = run[begin : begin + size]
            low, high = min(piece, key=lambda p: p.loss), max(piece, key=lambda p: p.loss)
            ends = {piece[0].step: piece[0]} if begin == 0 else {}
            ends |= {run[-1].step: run[-1]} if begin + size >= len(run) else {}
            yield from sorted((ends | {low.step: low, high.step: high}).values(), key=lambda p: p.step)
