"""Text that lies in S3: listed, streamed, read from where a stream broke, and never in two versions."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from trainer.builtin.data.prepare import documents, inputs
from trainer.builtin.data.prepare.prepare import make
from trainer.contract import Parameters
from trainer.contract.recipe import Recipe, Source
from trainer.errors import DataError


@pytest.fixture(scope="module")
def client(moto_s3: Any) -> Any:
    moto_s3.create_bucket(Bucket="texts")
    return moto_s3


@pytest.fixture(autouse=True)
def at_hand(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_s3", lambda: client)


def lines(first: int, last: int) -> bytes:
    return "".join(json.dumps({"text": f"document {n} " * 30}) + "\n" for n in range(first, last)).encode()


def put(client: Any, name: str) -> Recipe:
    for key, body in (
        ("a.jsonl", lines(0, 60)),
        ("deep/b.jsonl.gz", gzip.compress(lines(60, 90))),
        ("notes.md", b"not asked for"),
    ):
        client.put_object(Bucket="texts", Key=f"{name}/{key}", Body=body)
    client.put_object(Bucket="texts", Key=f"{name}-old/c.jsonl", Body=lines(90, 99))
    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": [f"row {n} " * 40 for n in range(20)]}), table, row_group_size=6)
    client.put_object(Bucket="texts", Key=f"{name}/d.parquet", Body=table.getvalue())
    sources = tuple(
        Source(name=f"s{n}", location=f"s3://texts/{name}", pattern=pattern)
        for n, pattern in enumerate(("**/*.jsonl*", "*.parquet"))
    )
    return Recipe(sources=sources, parameters=Parameters(held_out=0.2, seed=1), vocabulary=280)


def quiet(stage: str, part: float) -> None:
    """Nobody listens."""


def test_objects_are_prepared_as_files_are(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "UNIT_BYTES", 4000)
    found = make(put(client, "whole"), tmp_path / "out", quiet, cores=1)
    assert (found.documents, [source.files for source in found.sources]) == (110, [2, 1])
    assert [source.location for source in found.sources] == ["s3://texts/whole"] * 2
    again = make(put(client, "whole"), tmp_path / "again", quiet, cores=1)
    assert again == found


def test_a_broken_stream_is_read_on_from_where_it_broke(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaking:
        def __init__(self, inner: Any) -> None:
            self._inner, self._left = inner, 3000

        def read(self, count: int) -> bytes:
            if self._left <= 0:
                raise OSError("connection reset")
            piece = bytes(self._inner.read(min(count, self._left)))
            self._left -= len(piece)
            return piece

    get, ranges = client.get_object, list[str]()

    def broken(**request: Any) -> dict[str, Any]:
        ranges.append(request["Range"])
        answer = get(**request)
        return {**answer, "Body": Breaking(answer["Body"])}

    whole = make(put(client, "broken"), tmp_path / "whole", quiet, cores=1)
    monkeypatch.setattr(client, "get_object", broken)
    monkeypatch.setattr(inputs.time, "sleep", lambda seconds: None)
    assert make(put(client, "broken"), tmp_path / "out", quiet, cores=1) == whole
    assert "bytes=3000-" in ranges


def test_an_object_that_changes_while_it_is_prepared_is_refused_by_name(client: Any, tmp_path: Path) -> None:
    recipe = put(client, "changing")

    def change(stage: str, part: float) -> None:
        if stage == "tokenizer":
            client.put_object(Bucket="texts", Key="changing/a.jsonl", Body=lines(200, 260))

    with pytest.raises(DataError, match=r"changed while.*changing/a\.jsonl"):
        make(recipe, tmp_path / "out", change, cores=1)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_bucket_that_is_not_there_is_named(tmp_path: Path) -> None:
    source = Source(location="s3://nowhere/text")
    recipe = Recipe(sources=(source,), parameters=Parameters(held_out=0.1, seed=1))
    with pytest.raises(DataError, match=r"bucket cannot be read.*nowhere.*cure"):
        make(recipe, tmp_path / "out", quiet, cores=1)
