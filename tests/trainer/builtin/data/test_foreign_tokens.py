"""Token data that Megatron-LM and DeepSpeed have written, by their own writers, are read to the last id."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import torch
from deepspeed.runtime.data_pipeline.data_sampling import indexed_dataset as deepspeed_format
from moto import mock_aws
from pydantic import ValidationError

from tests.trainer.builtin.data.test_document_beginning import documents, tokenizer_file
from tests.trainer.data_sets import quiet, recipe
from trainer.builtin.data.prepare import documents as reading
from trainer.builtin.data.prepare import inputs
from trainer.builtin.data.prepare.prepare import make
from trainer.contract.recipe import Recipe, Source
from trainer.errors import DataError

END, BEGIN = 0, 300
Tokens = list[list[int]]


def megatron(dtype: Any) -> Callable[[Path, Tokens], None]:
    """Megatron-LM's writer; each document is several sequences, as `preprocess_data.py --split-sentences` has them."""

    def write(stem: Path, texts: Tokens) -> None:
        # All of Megatron takes seconds to import, which every worker of a run would pay for while it collects.
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        builder = IndexedDatasetBuilder(f"{stem}.bin", dtype=dtype)
        for text in texts:
            for part in (text[:3], text[3:]):
                builder.add_item(torch.tensor(part, dtype=torch.int64))
            builder.end_document()
        builder.finalize(f"{stem}.idx")

    return write


def deepspeed(dtype: Any) -> Callable[[Path, Tokens], None]:
    def write(stem: Path, texts: Tokens) -> None:
        builder = deepspeed_format.MMapIndexedDatasetBuilder(f"{stem}.bin", dtype=dtype)
        for text in texts:
            builder.add_item(torch.tensor(text, dtype=torch.int64))
            builder.end_document()
        builder.finalize(f"{stem}.idx")

    return write


def cached(stem: Path, texts: Tokens) -> None:
    """The older layout, TNTIDX."""
    builder = deepspeed_format.IndexedDatasetBuilder(f"{stem}.bin")
    for text in texts:
        builder.add_item(torch.tensor(text, dtype=torch.int64))
        builder.end_document()
    builder.finalize(f"{stem}.idx")


WRITERS = {
    "megatron-uint16": megatron(np.uint16), "megatron-int32": megatron(np.int32), "megatron-int64": megatron(np.int64),
    "deepspeed-uint16": deepspeed(np.uint16), "deepspeed-uint32": deepspeed(np.uint32), "cached": cached,
}  # fmt: skip


def draw(count: int = 60) -> Tokens:
    """Documents of ids; every third one ends, and every fifth one begins, with the token for that."""
    chance = random.Random(3)
    texts = [[chance.randrange(1, 299) for _ in range(chance.randint(4, 90))] for _ in range(count)]
    texts = [text + [END] * (number % 3 == 0) for number, text in enumerate(texts)]
    return [[BEGIN] * (number % 5 == 0) + text for number, text in enumerate(texts)]


def foreign(root: Path, location: str | None = None, **changes: Any) -> Recipe:
    document = recipe(Source(location=location or str(root / "tokens"))).model_dump()
    document["parameters"]["format"] = "megatron"
    return Recipe.model_validate(document | {"tokenizer": tokenizer_file(root / "tokenizer")} | changes)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_id_of_every_writer_is_there_between_beginning_and_end(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "UNIT_BYTES", 500)
    (tmp_path / "tokens").mkdir()
    texts = draw()
    WRITERS[writer](tmp_path / "tokens/first", texts[:40])
    WRITERS[writer](tmp_path / "tokens/second", texts[40:])
    ended = sorted(text if text[-1] == END else [*text, END] for text in texts)
    manifest = make(foreign(tmp_path), tmp_path / "out", quiet, cores=1)
    assert (manifest.documents, manifest.skipped_documents) == (len(texts), 0)
    assert sorted(documents(tmp_path / "out")) == ended
    made = foreign(tmp_path, beginning_of_document="<begin>")
    make(made, tmp_path / "began", quiet, cores=1)
    assert sorted(documents(tmp_path / "began")) == sorted(
        text if text[0] == BEGIN else [BEGIN, *text] for text in ended
    )
    make(made, tmp_path / "shared", quiet, cores=2)
    for path in (tmp_path / "began").glob("*.bin"):
        assert path.read_bytes() == (tmp_path / "shared" / path.name).read_bytes()


def test_our_own_shards_are_token_data_too(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    megatron(np.uint16)(tmp_path / "tokens/x", draw())
    make(foreign(tmp_path), tmp_path / "out", quiet, cores=1)
    shutil.rmtree(tmp_path / "tokens")
    shutil.copytree(tmp_path / "out", tmp_path / "tokens", ignore=shutil.ignore_patterns(".*"))
    make(foreign(tmp_path), tmp_path / "again", quiet, cores=1)
    assert sorted(documents(tmp_path / "again")) == sorted(documents(tmp_path / "out"))


@mock_aws
def test_token_data_in_s3_are_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", **keys)
    monkeypatch.setattr(inputs, "_s3", lambda: client)
    client.create_bucket(Bucket="texts")
    (tmp_path / "tokens").mkdir()
    cached(tmp_path / "tokens/x", draw())
    for path in (tmp_path / "tokens").iterdir():
        client.upload_file(str(path), "texts", f"tokens/{path.name}")
    make(foreign(tmp_path), tmp_path / "local", quiet, cores=1)
    make(foreign(tmp_path, "s3://texts/tokens"), tmp_path / "remote", quiet, cores=1)
    assert documents(tmp_path / "remote") == documents(tmp_path / "local")


def damaged(stem: Path, what: str) -> None:
    index, ids = Path(f"{stem}.idx"), Path(f"{stem}.bin")
    content = bytearray(index.read_bytes())
    if what == "cut":
        index.write_bytes(content[:-8])
    elif what == "head":
        index.write_bytes(b"PAR1" + content[4:])
    elif what == "type":
        content[17] = 6  # float64 of Megatron-LM, but two bytes an id
        index.write_bytes(content)
    elif what == "shorter":
        ids.write_bytes(ids.read_bytes()[:-3])
    else:
        content[34] += 1  # one sequence's length
        index.write_bytes(content)


@pytest.mark.parametrize(
    ("what", "words"),
    [("cut", "cannot be read"), ("head", "TNTIDX"), ("type", "no type"), ("shorter", "cover"), ("longer", "cover")],
)
def test_an_index_of_another_file_is_refused(what: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    megatron(np.int32)(tmp_path / "tokens/x", draw())
    damaged(tmp_path / "tokens/x", what)
    with pytest.raises(DataError, match=words):
        make(foreign(tmp_path), tmp_path / "out", quiet, cores=1)


def test_token_data_without_its_index_are_refused_and_never_left_out_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    for name in ("x", "y"):
        megatron(np.int32)(tmp_path / "tokens" / name, draw())
    (tmp_path / "tokens/y.idx").unlink()
    with pytest.raises(DataError, match="lack their index") as refused:
        make(foreign(tmp_path), tmp_path / "out", quiet, cores=1)
    assert "1 of 2" in str(refused.value) and "y.bin" in str(refused.value)


def test_token_data_may_be_one_file(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    for name in ("x", "y"):
        megatron(np.int32)(tmp_path / "tokens" / name, draw())
    manifest = make(foreign(tmp_path, str(tmp_path / "tokens/x.bin")), tmp_path / "out", quiet, cores=1)
    assert manifest.documents == len(draw())


def test_ids_of_another_tokenizer_and_no_tokenizer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    megatron(np.int32)(tmp_path / "tokens/x", [*draw(), [5, 302, 7, 8]])
    with pytest.raises(DataError, match="another tokenizer"):
        make(foreign(tmp_path), tmp_path / "out", quiet, cores=1)
    with pytest.raises(ValidationError, match="need a tokenizer"):
        foreign(tmp_path, tokenizer=None)


def test_the_same_ids_under_another_index_are_prepared_again(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    deepspeed(np.uint16)(tmp_path / "tokens/x", draw())
    before = make(foreign(tmp_path), tmp_path / "out", quiet, cores=1)
    halves = [part for text in draw() for part in (text[:2], text[2:])]
    deepspeed(np.uint16)(tmp_path / "x", halves)
    assert (tmp_path / "tokens/x.bin").read_bytes() == (tmp_path / "x.bin").read_bytes()
    shutil.copyfile(tmp_path / "x.idx", tmp_path / "tokens/x.idx")
    assert make(foreign(tmp_path), tmp_path / "out", quiet, cores=1).documents > before.documents
