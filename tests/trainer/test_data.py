"""Prepared data is the same bytes every time, and its order is a pure function."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.contract import DataManifest
from trainer.data.order import permute, sample_at
from trainer.data.prepare import prepare
from trainer.data.reader import open_data
from trainer.errors import DataError


def write_text(root: Path, documents: int = 12) -> Path:
    root.mkdir()
    for index in range(documents):
        words = (f"word{number % (index + 3)} of document {index}\n" for number in range(300))
        (root / f"{index}.txt").write_text("".join(words))
    return root


def make(source: Path, out: Path, pattern: str = "*.txt", vocabulary: int = 270) -> DataManifest:
    return prepare(source, pattern, None, 0.2, 5, vocabulary, out, lambda stage, part: None)


def content(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir())}


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 700), seed=st.integers(0, 2**32), epoch=st.integers(0, 5))
def test_each_epoch_visits_every_sample_exactly_once(size: int, seed: int, epoch: int) -> None:
    visited = [sample_at(position, size, seed) for position in range(epoch * size, (epoch + 1) * size)]
    assert sorted(visited) == list(range(size))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 10**12), seed=st.integers(0, 2**32), position=st.integers(0, 10**14))
def test_the_sample_at_a_position_is_a_pure_function_within_range(size: int, seed: int, position: int) -> None:
    assert 0 <= sample_at(position, size, seed) < size
    assert sample_at(position, size, seed) == sample_at(position, size, seed)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(permute(value, 100, key) for value in range(100)) for key in (b"1:0", b"1:1", b"2:0")]
    assert len(set(orders)) == 3 and tuple(range(100)) not in orders


def test_preparing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_text(tmp_path / "text")
    make(source, tmp_path / "one")
    make(source, tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_files_without_text_are_skipped_and_counted(tmp_path: Path) -> None:
    source = write_text(tmp_path / "text")
    (source / "image.txt").write_bytes(b"\xff\xfe\x00\x9f")
    (source / "empty.txt").write_text("  \n")
    manifest = make(source, tmp_path / "out")
    assert (manifest.documents, manifest.skipped_documents) == (12, 2)
    assert 0 < manifest.held_out_documents < 12


@pytest.mark.parametrize(
    ("pattern", "vocabulary", "says"),
    [("*.md", 300, "no file matches"), ("*.txt", 60_000, "too small for the vocabulary")],
)
def test_input_that_cannot_be_used_is_refused_with_what_was_seen(
    tmp_path: Path, pattern: str, vocabulary: int, says: str
) -> None:
    with pytest.raises(DataError, match=says) as refusal:
        make(write_text(tmp_path / "text"), tmp_path / "out", pattern, vocabulary)
    assert refusal.value.seen and refusal.value.cure
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data folder"):
        make(tmp_path / "nowhere", tmp_path / "out")


def test_a_reader_refuses_a_shard_with_a_changed_byte_and_names_it(tmp_path: Path) -> None:
    make(write_text(tmp_path / "text"), tmp_path / "out")
    shard = tmp_path / "out" / "train-00000.bin"
    shard.write_bytes(b"\x01" + shard.read_bytes()[1:])
    with pytest.raises(DataError, match=r"train-00000\.bin"):
        open_data(tmp_path / "out", "", 270, 16, 5)


def test_a_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    make(write_text(tmp_path / "text"), tmp_path / "out")
    with pytest.raises(DataError, match="differ in size"):
        open_data(tmp_path / "out", "", 301, 16, 5)


def test_sequences_are_the_windows_of_the_token_row_and_targets_follow_inputs(tmp_path: Path) -> None:
    make(write_text(tmp_path / "text"), tmp_path / "out")
    reader = open_data(tmp_path / "out", "", 270, 16, 5)
    row = np.fromfile(tmp_path / "out" / "train-00000.bin", dtype="<u2")
    windows = {tuple(row[i * 16 : i * 16 + 17]) for i in range(reader.samples)}
    seen = [tuple(sequence) for sequence in reader.batch(range(reader.samples))]
    assert set(seen) == windows
    assert [tuple(s) for s in reader.batch(range(3, 5))] == seen[3:5]


def test_windows_cross_the_boundary_of_shards(tmp_path: Path) -> None:
    from trainer.data.reader import TokenPart

    part = TokenPart((np.arange(5), np.arange(5, 7), np.arange(7, 20)), (0, 5, 7), 20)
    for start, length in itertools.product(range(10), range(1, 10)):
        assert part.window(start, length).tolist() == list(range(start, start + length))
