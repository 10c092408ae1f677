"""The order of samples: a bijection per epoch, balanced over sources, and a pure function of seed and position."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.data_sets import open_data, prepare
from trainer.builtin.data.feed import Feed, Share
from trainer.builtin.data.reader import Reader
from trainer.client.bivouac_data.order import ROUND, Order, Pool, permute, quotas
from trainer.contract.ledger import step_digest

SIZES = st.integers(1, 900)
SEEDS = st.integers(0, 2**63)
BLOCKS = st.integers(1, 40)
AT_ONCE = st.integers(1, 6)


def one(size: int, seed: int = 1, block: int = 8, at_once: int = 4) -> Order:
    return Order([Pool("a", size, 1.0, block, at_once)], seed)


@settings(max_examples=150, deadline=None)
@given(size=SIZES, seed=SEEDS, epoch=st.integers(0, 10**6), block=BLOCKS, at_once=AT_ONCE)
def test_each_epoch_visits_every_sample_exactly_once(
    size: int, seed: int, epoch: int, block: int, at_once: int
) -> None:
    drawn = one(size, seed, block, at_once).at(range(epoch * size, (epoch + 1) * size))
    assert sorted(drawn.sample.tolist()) == list(range(size))
    assert set(drawn.epoch.tolist()) == {epoch}


@settings(max_examples=4, deadline=None)
@given(
    sizes=st.lists(st.integers(1000, 9000), min_size=2, max_size=5),
    shares=st.lists(st.floats(0.01, 100), min_size=5, max_size=5),
    seed=SEEDS,
    block=st.integers(16, 64),
)
def test_in_a_mixture_every_source_has_epochs_of_its_own(
    sizes: list[int], shares: list[float], seed: int, block: int
) -> None:
    pools = [Pool(f"s{n}", size, share, block, 3) for n, (size, share) in enumerate(zip(sizes, shares, strict=False))]
    drawn = Order(pools, seed).at(range(2 * ROUND))
    for index, size in enumerate(sizes):
        mine = drawn.source == index
        epochs = int(mine.sum()) // size
        whole = slice(epochs * size)
        visited = drawn.sample[mine][whole].reshape(epochs, size)
        assert (np.sort(visited, axis=1) == np.arange(size)).all()
        assert (drawn.epoch[mine][whole].reshape(epochs, size) == np.arange(epochs)[:, None]).all()


@settings(max_examples=60, deadline=None)
@given(
    shares=st.lists(st.floats(0.01, 100), min_size=2, max_size=6),
    seed=SEEDS,
    start=st.integers(0, 10**12),
    count=st.integers(1, 5000),
)
def test_any_stretch_of_positions_holds_each_source_in_its_weight(
    shares: list[float], seed: int, start: int, count: int
) -> None:
    pools = [Pool(f"s{n}", 1000, share, 8, 4) for n, share in enumerate(shares)]
    drawn = Order(pools, seed).at(range(start, start + count))
    for index, quota in enumerate(quotas(shares)):
        # Twice the discrepancy of the van der Corput sequence, and once more where a round ends within the stretch.
        assert abs(int((drawn.source == index).sum()) - count * quota / ROUND) <= 2 * 2 * 17


@settings(max_examples=100, deadline=None)
@given(shares=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=50))
def test_shares_fill_a_round_and_leave_nobody_out(shares: list[float]) -> None:
    found = quotas(shares)
    assert sum(found) == ROUND and min(found) >= 1
    exact = [share / sum(shares) * ROUND for share in shares]
    assert all(abs(each - wanted) <= len(shares) + 1 for each, wanted in zip(found, exact, strict=True))


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 10**13), seed=SEEDS, position=st.integers(0, 10**14), count=st.integers(1, 64))
def test_a_position_has_its_sample_however_it_is_asked_for(size: int, seed: int, position: int, count: int) -> None:
    order = one(size, seed, 2**12, 16)
    together = order.at(range(position, position + count)).sample.tolist()
    assert together == [int(order.at(range(p, p + 1)).sample[0]) for p in range(position, position + count)]
    assert all(0 <= sample < size for sample in together)


def test_position_10_to_the_12_is_as_quick_as_position_0() -> None:
    order = one(10**10, block=2**15, at_once=16)
    order.at(range(8))

    def least(start: int) -> float:
        seconds = []
        for number in range(30):
            begun = time.perf_counter()
            order.at(range(start + 8 * number, start + 8 * number + 8))
            seconds.append(time.perf_counter() - begun)
        return min(seconds)

    assert least(10**12) < 5 * least(0)


def test_epochs_seeds_and_sources_have_orders_of_their_own() -> None:
    orders = [tuple(one(100, seed).at(range(100 * epoch, 100 * epoch + 100)).sample) for seed, epoch in
              ((1, 0), (1, 1), (2, 0))]  # fmt: skip
    assert len(set(orders)) == 3 and tuple(range(100)) not in orders
    both = Order([Pool("a", 100, 1.0, 8, 40), Pool("b", 100, 1.0, 8, 40)], 1).at(range(ROUND))
    first = [both.sample[both.source == index][:100].tolist() for index in (0, 1)]
    assert first[0] != first[1]


def test_a_permutation_spreads_its_values_evenly() -> None:
    """Chi-square over where 4096 neighbours go, in 16 cells, for 200 keys: a mean near its 15 degrees of freedom."""
    values, scores = np.arange(4096, dtype=np.uint64), []
    for key in range(200):
        cells = np.bincount((permute(values, 10**9, f"{key}") // np.uint64(62_500_000)).astype(int), minlength=16)
        scores.append(float(((cells - 256) ** 2 / 256).sum()))
    assert 13.5 < np.mean(scores) < 16.5


@settings(max_examples=40, deadline=None)
@given(size=SIZES, seed=SEEDS, block=BLOCKS, at_once=AT_ONCE, start=st.integers(0, 5000), mixed=st.booleans())
def test_the_windows_ahead_hold_every_sample_before_it_is_needed(
    size: int, seed: int, block: int, at_once: int, start: int, mixed: bool
) -> None:
    pools = [Pool("a", size, 2.0, block, at_once)] + ([Pool("b", 77, 1.0, 5, 2)] if mixed else [])
    order = Order(pools, seed)
    drawn = order.at(range(start, start + 200))
    had: set[tuple[int, int]] = set()
    wanted = {*zip(drawn.source.tolist(), drawn.sample.tolist(), strict=True)}
    for window in order.windows(start):
        if window.position > start + 200 + 34 * 3:  # a source may run ahead of its weight by so much
            break
        had |= {(window.source, sample) for part in window.samples for sample in part}
    assert wanted <= had


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    source, out = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data")
    for index in range(30):
        (source / f"{index}.txt").write_text("".join(f"{n % (index + 3)} of {index}, {n}\n" for n in range(200)))
    prepare(source, "*.txt", None, 0.2, 5, 270, out, lambda stage, part: None)
    return open_data(out, "", 270, 16, 5)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from([(1, 24), (2, 12), (2, 3), (3, 8), (4, 2), (6, 4), (8, 3), (24, 1), (12, 1)]),
    steps=st.integers(1, 4),
    start=st.integers(0, 10**9),
)
def test_neither_world_size_nor_micro_batch_changes_what_a_step_consumes(
    reader: Reader, shape: tuple[int, int], steps: int, start: int
) -> None:
    world, micro = shape
    first, end = 24 * start, 24 * (start + steps)
    whole = [
        step_digest(reader.digests(r, reader.stored(r))) for r in (range(p, p + 24) for p in range(first, end, 24))
    ]
    sums, rows = [0] * steps, dict[int, list[int]]()
    for rank in range(world):
        share = Share(24, micro, world, rank)
        with Feed(reader, share, first, end, 2) as feed:
            for number in range(steps):
                fed = feed.next()
                sums[number] = (sums[number] + fed.digest) % 2**64
                for positions, batch in zip(share.micro_batches(fed.position), fed.micro_batches, strict=True):
                    rows |= dict(zip(positions, batch.tolist(), strict=True))
    assert sums == whole
    assert [rows[position] for position in range(first, end)] == reader.batch(range(first, end)).tolist()


def test_a_resumed_feed_goes_on_where_the_other_was(reader: Reader) -> None:
    share = Share(8, 2, 2, 1)
    with Feed(reader, share, 0, 80, 2) as feed:
        through = [[batch.tolist() for batch in feed.next().micro_batches] for _ in range(10)]
    with Feed(reader, share, 48, 80, 3) as feed:
        assert [[batch.tolist() for batch in feed.next().micro_batches] for _ in range(4)] == through[6:]


def test_what_the_reading_thread_met_is_raised_where_its_step_would_have_come(reader: Reader, tmp_path: Path) -> None:
    from trainer.errors import DataError

    class Broken(Reader):
        def stored(self, positions: range) -> np.ndarray:  # type: ignore[override]
            if positions.start >= 16:
                raise DataError("a token shard cannot be read", "train-00000.bin")
            return super().stored(positions)

    broken = Broken(reader.manifest, lambda shard: reader._rows[0].opener(shard), 16, 5)
    with Feed(broken, Share(8, 8, 1, 0), 0, 80, 1) as feed:
        assert [feed.next().position, feed.next().position] == [0, 8]
        with pytest.raises(DataError, match="train-00000"):
            feed.next()
