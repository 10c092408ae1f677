"""The search for the nodes that slow a gang: halve slow groups, then pair each remaining node with a sound one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Group = tuple[int, ...]
Sound = Callable[[Sequence[Group]], Sequence[bool]]
"""Measures disjoint groups of two or more nodes at the same time; returns whether each reaches its floor."""

_PAIRINGS = 3
"""Rounds of pairs in the search for a first sound pair; three rounds hold all pairs of three nodes."""


@dataclass(frozen=True)
class Located:
    slow: Group
    """Nodes that are slow with a sound node. Empty if none can be blamed: each is sound with some others, or none is
    sound with any."""
    rounds: int


def locate(nodes: Sequence[int], sound: Sound) -> Located:
    """Locate the slow ones when all `nodes` together are too slow, in about 2 log2(n) rounds. Pure except for `sound`.

    Every process of the gang runs it on the same results and so measures the same groups in the same order.
    """
    rounds = 0

    def measured(groups: Sequence[Group]) -> Sequence[bool]:
        nonlocal rounds
        rounds += 1
        return sound(groups)

    cleared, suspects = _halved(tuple(nodes), measured)
    if not cleared:
        for pairs in list(_pairings(suspects))[:_PAIRINGS]:
            cleared += [node for pair, ok in zip(pairs, measured(pairs), strict=True) if ok for node in pair]
            if cleared:
                break
        suspects = [node for node in suspects if node not in cleared]
    slow: list[int] = []
    while suspects and cleared:
        asked, suspects = suspects[: len(cleared)], suspects[len(cleared) :]
        pairs = [(suspect, reference) for suspect, reference in zip(asked, cleared, strict=False)]
        for suspect, ok in zip(asked, measured(pairs), strict=True):
            (cleared if ok else slow).append(suspect)
    return Located(tuple(sorted(slow)), rounds)


def _halved(nodes: Group, measured: Sound) -> tuple[list[int], list[int]]:
    """Return (nodes of sound groups, nodes of slow groups that are too small to halve)."""
    cleared, suspects, slow = list[int](), list[int](), [nodes]
    while slow:
        halves: list[Group] = []
        for group in slow:
            if len(group) <= 2:
                suspects += group
                continue
            for half in (group[: len(group) // 2], group[len(group) // 2 :]):
                if len(half) == 1:
                    suspects += half
                else:
                    halves.append(half)
        slow = []
        for half, ok in zip(halves, measured(halves) if halves else (), strict=True):
            if ok:
                cleared += half
            else:
                slow.append(half)
    return cleared, suspects


def _pairings(nodes: Sequence[int]) -> Iterator[list[Group]]:
    """Yield rounds of disjoint pairs, each pair once (the circle method)."""
    ring: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        several = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(one, other) for one, other in several if one is not None and other is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]
