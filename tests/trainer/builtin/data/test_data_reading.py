"""What a reader hands out of a data set, and what it refuses to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.data_sets import open_data, quiet, recipe, simple, write_text
from trainer.builtin.data.prepare.prepare import make
from trainer.builtin.data.reader import TokenRow
from trainer.client.bivouac_data.reader import folder_opener
from trainer.errors import DataError


@pytest.mark.parametrize("name", ["train-00000.bin", "train-00000.idx"])
def test_a_reader_refuses_a_shard_with_a_changed_byte_and_names_it(tmp_path: Path, name: str) -> None:
    simple(write_text(tmp_path / "text"), tmp_path / "out")
    shard = tmp_path / "out" / name
    shard.write_bytes(b"\x01" + shard.read_bytes()[1:])
    with pytest.raises(DataError, match=name):
        open_data(tmp_path / "out", "", 270, 16, 5)


def test_a_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    simple(write_text(tmp_path / "text"), tmp_path / "out")
    with pytest.raises(DataError, match="differ in size"):
        open_data(tmp_path / "out", "", 301, 16, 5)


def test_sequences_are_the_windows_of_the_token_row_across_shards(tmp_path: Path) -> None:
    manifest = make(recipe(write_text(tmp_path / "text"), vocabulary=270), tmp_path / "out", quiet, cores=1)
    assert len(manifest.train) > 2
    reader = open_data(tmp_path / "out", "", 270, 16, 5)
    row = np.concatenate([np.fromfile(tmp_path / "out" / shard.file, dtype="<i2") for shard in manifest.train])
    windows = {tuple(row[i * 16 : i * 16 + 17]) for i in range(reader.samples)}
    seen = [tuple(sequence) for sequence in reader.batch(range(reader.samples))]
    assert set(seen) == windows
    assert [tuple(s) for s in reader.batch(range(3, 5))] == seen[3:5]


def test_windows_cross_the_boundary_of_shards(tmp_path: Path) -> None:
    from trainer.contract import TokenShard

    shards, at = [], 0
    for index, count in enumerate((5, 2, 13)):
        np.arange(at, at + count, dtype="<i2").tofile(tmp_path / f"{index}.bin")
        digests = {"sha256": "", "index_sha256": ""}
        shards.append(TokenShard(file=f"{index}.bin", tokens=count, documents=1, **digests))
        at += count
    row = TokenRow(tuple(shards), "int16", folder_opener(tmp_path))
    for start in range(12):
        for length in range(1, 9):
            out = np.empty(length, dtype=np.int16)
            row.copy_window(start, out)
            assert out.tolist() == list(range(start, start + length))
    assert [shard.file for shard in row.shards_of(4, 7)] == ["0.bin", "1.bin"]
