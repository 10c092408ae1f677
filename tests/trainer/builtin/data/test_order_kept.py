"""The order of samples as campaigns of today consume it: resumed by later code, each goes on with the very next sample.

The digests are of what the code of November 2026 draws. One that changes means: every campaign that is under way would
see some samples twice and others never.
"""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from trainer.client.bivouac_data.order import ROUND, Drawn, Order, Pool, _wrap, quotas

SMALL = Pool("small", 101, 1.0, 8, 40)
WINDOWED = Pool("windowed", 1003, 3.0, 8, 4)
EVEN = Pool("even", 960, 2.0, 8, 4)
EDGE = Pool("edge", 35, 1.0, 8, 4)
TINY = Pool("tiny", 1, 0.001, 8, 4)
POOLS = {
    "small": [SMALL],
    "windowed": [WINDOWED],
    "even": [EVEN],
    "edge": [EDGE],
    "pair": [WINDOWED, EDGE],
    "mixture": [SMALL, WINDOWED, EVEN, TINY],
}


def digest(drawn: Drawn) -> str:
    columns = np.stack([drawn.source.astype("<i8"), drawn.sample.astype("<i8"), drawn.epoch.astype("<i8")])
    return hashlib.sha256(columns.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("pools", "seed", "start", "wanted"),
    [
        ("small", 1, 0, "2c66c6fe5786c77b"),
        ("small", 2, 0, "088fd1745b02afbd"),
        ("small", 1, ROUND - 1500, "88a5d82ffcf7a1c1"),
        ("small", 7, 10**12, "705e293ef833c8c8"),
        ("windowed", 1, 0, "7712f5456d976947"),
        ("windowed", 2, 0, "c748dd5028f9ded7"),
        ("windowed", 1, ROUND - 1500, "30c2d513718df7b4"),
        ("windowed", 7, 10**12, "ba02e626685d82cf"),
        ("even", 1, 0, "25279e30562c801e"),
        ("even", 2, 0, "975d994ec1fe56a2"),
        ("even", 1, ROUND - 1500, "4bacf2c939524875"),
        ("even", 7, 10**12, "0fa76b3c5fcf234a"),
        ("edge", 1, 0, "46e9ff197aca9c95"),
        ("edge", 2, 0, "7d1c02cfe127dff1"),
        ("edge", 1, ROUND - 1500, "3ddb4b01818dfbd7"),
        ("edge", 7, 10**12, "4747be051af8160c"),
        ("pair", 1, 0, "668de45f0f498ca8"),
        ("pair", 2, 0, "7bb283c58ee41d9b"),
        ("pair", 1, ROUND - 1500, "8ab5b8029107b3fe"),
        ("pair", 7, 10**12, "9e02f8e95d0030be"),
        ("mixture", 1, 0, "e5bc716c6594be3f"),
        ("mixture", 2, 0, "c5653f20d012a6fd"),
        ("mixture", 1, ROUND - 1500, "a577fc611dab7736"),
        ("mixture", 7, 10**12, "b1238f9d552ff24b"),
    ],
)
def test_what_was_drawn_is_drawn_ever_after(pools: str, seed: int, start: int, wanted: str) -> None:
    assert digest(Order(POOLS[pools], seed).at(range(start, start + 3000))) == wanted


def test_a_rank_asks_for_every_nth_position() -> None:
    order = Order(POOLS["mixture"], 3)
    every, some = order.at(range(ROUND - 30, ROUND + 31)), order.at(range(ROUND - 30, ROUND + 31, 4))
    for column in ("source", "sample", "epoch"):
        assert getattr(some, column).tolist() == getattr(every, column)[::4].tolist()


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([5.0], [65536]),
        ([1, 1], [32768, 32768]),
        ([1, 2], [21845, 43691]),
        ([1, 1, 1], [21846, 21845, 21845]),
        ([0.2, 0.3, 0.5], [13107, 19661, 32768]),
        ([3, 5, 11], [10348, 17246, 37942]),
        ([1e-9, 1], [1, 65535]),
        ([1e-9, 1, 1e-9], [1, 65534, 1]),
    ],
)
def test_a_round_is_shared_by_weight_and_by_largest_remainder_with_one_to_everybody(
    weights: list[float], shares: list[int]
) -> None:
    assert quotas(weights) == shares


@pytest.mark.parametrize("weights", [[0.0], [1.0, 0.0], [1.0, -1.0, 5.0]])
def test_a_weight_of_nothing_is_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        quotas(weights)


@pytest.mark.parametrize("pools", [[], [Pool("a", 0, 1.0, 8, 4)], [SMALL, Pool("a", 0, 1.0, 8, 4)]])
def test_a_source_without_a_sample_is_refused(pools: list[Pool]) -> None:
    with pytest.raises(ValueError, match="needs a sample"):
        Order(pools, 1)


@pytest.mark.parametrize("pools", POOLS)
@pytest.mark.parametrize(("round_", "offset"), [(0, 0), (0, 1500), (1, 300)])
def test_each_window_holds_exactly_what_its_source_draws_from_the_one_under_way(
    pools: str, round_: int, offset: int
) -> None:
    order, shares = Order(POOLS[pools], 5), quotas([pool.weight for pool in POOLS[pools]])
    begin, start = round_ * ROUND, round_ * ROUND + offset
    some = order.at(range(begin, begin + 4000))
    before = [round_ * share for share in shares]  # whole rounds meet the weights exactly
    reached: dict[int, int] = {}
    last = compared = 0
    for window in itertools.islice(order.windows(start), 60):
        index, samples = window.source, [sample for part in window.samples for sample in part]
        if index not in reached:  # the window that the source is in at the start
            size = POOLS[pools][index].samples
            at_once = 32 if size >= 960 else size
            drawn = before[index] + int((some.source[:offset] == index).sum())
            reached[index] = drawn - drawn % size % at_once
        first = reached[index]
        assert window.position == first * ROUND // shares[index] >= last
        assert window.positions == len(samples) * ROUND // shares[index]
        seen = some.sample[some.source == index]
        low, high = first - before[index], first - before[index] + len(samples)
        if low >= 0 and high <= len(seen):
            assert sorted(seen[low:high].tolist()) == sorted(samples)
            compared += 1
        reached[index], last = first + len(samples), window.position
    assert set(reached) == set(range(len(shares))) and compared > 9


@pytest.mark.parametrize(
    ("start", "count", "parts"),
    [(3, 0, []), (3, 4, [range(3, 7)]), (3, 5, [range(3, 8)]), (3, 6, [range(3, 8), range(1)]), (7, 1, [range(7, 8)])],
)
def test_a_stretch_that_goes_over_the_end_goes_on_at_the_beginning(start: int, count: int, parts: list[range]) -> None:
    assert list(_wrap(start, count, 8)) == parts
