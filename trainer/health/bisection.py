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
class SlowNodes:
    slow: Group
    """Nodes that are slow with a sound node. Empty if none can be blamed: each is sound with some others, or none is
    sound with any."""
    rounds: int


def locate(nodes: Sequence[int], sound: Sound) -> SlowNodes:
    """Locate the slow ones when all `nodes` together are too slow, in about 2 log2(n) rounds. Pure except for `sound`.

    Every process of the gang runs it on the same results and so measures the same groups in the same order.
    """
    rounds = 0

    def measure(groups: Sequence[Group]) -> Sequence[bool]:
        nonlocal rounds
        rounds += 1
        return sound(groups)

    sound_nodes, suspects = _halve(tuple(nodes), measure)
    if not sound_nodes:
        for pairs in list(_pairings(suspects))[:_PAIRINGS]:
            sound_nodes += [node for pair, ok in zip(pairs, measure(pairs), strict=True) if ok for node in pair]
            if sound_nodes:
                break
        suspects = [node for node in suspects if node not in sound_nodes]
    slow: list[int] = []
    while suspects and sound_nodes:
        candidates, suspects = suspects[: len(sound_nodes)], suspects[len(sound_nodes) :]
        pairs = [(suspect, reference) for suspect, reference in zip(candidates, sound_nodes, strict=False)]
        for suspect, ok in zip(candidates, measure(pairs), strict=True):
            (sound_nodes if ok else slow).append(suspect)
    return SlowNodes(tuple(sorted(slow)), rounds)


def _halve(nodes: Group, measure: Sound) -> tuple[list[int], list[int]]:
    """Return (nodes of sound groups, nodes of slow groups that are too small to halve)."""
    sound_nodes, suspects, slow = list[int](), list[int](), [nodes]
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
        for half, ok in zip(halves, measure(halves) if halves else (), strict=True):
            if ok:
                sound_nodes += half
            else:
                slow.append(half)
    return sound_nodes, suspects


def _pairings(nodes: Sequence[int]) -> Iterator[list[Group]]:
    """Yield rounds of disjoint pairs, each pair once (the circle method)."""
    ring: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(left, right) for left, right in pairs if left is not None and right is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]
