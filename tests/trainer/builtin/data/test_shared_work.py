"""One preparation by several workers through S3: the same bytes as by one, whoever is lost, and nothing made twice that
is finished."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from infra.spec.models.chat import PLAIN_TEMPLATE
from tests.trainer.builtin.data.chats import conversations, row_of
from tests.trainer.builtin.data.chats import recipe as recipe_of_chats
from trainer.builtin.data.prepare import documents, inputs, sharing
from trainer.builtin.data.prepare.parts import Parts
from trainer.builtin.data.prepare.prepare import list_files, make, plan_digest
from trainer.builtin.data.share import share
from trainer.contract import DATA_MANIFEST_NAME, Parameters
from trainer.contract.preparing import Prepared, Preparing
from trainer.contract.recipe import Recipe, Source
from trainer.errors import DataError, StorageError

ROWS = 150


@pytest.fixture(scope="module")
def client(moto_s3: Any) -> Any:
    for bucket in ("texts", "data"):
        moto_s3.create_bucket(Bucket=bucket)
    return moto_s3


@pytest.fixture(autouse=True)
def small(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_s3", lambda: client)
    monkeypatch.setattr(documents, "UNIT_BYTES", 5000)
    monkeypatch.setattr(sharing, "LEAST_PARTS", 5)


def lines(first: int, last: int) -> bytes:
    rows = ({"text": f"document {n % (ROWS - 7)} says {n * n % 91} words " * (1 + n % 9)} for n in range(first, last))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def put(client: Any, name: str) -> Recipe:
    """Three forms of files, repeated documents, a damaged row, and a source in an order of its own."""
    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": [f"row {n} " * 40 for n in range(30)]}), table, row_group_size=6)
    for key, body in (
        ("a.jsonl", lines(0, 70) + b"no json\n" + lines(70, ROWS)),
        ("deep/b.jsonl.gz", gzip.compress(lines(ROWS, ROWS + 40))),
        ("d.parquet", table.getvalue()),
    ):
        client.put_object(Bucket="texts", Key=f"{name}/{key}", Body=body)
    sources = tuple(
        Source(name=f"s{n}", location=f"s3://texts/{name}", pattern=pattern)
        for n, pattern in enumerate(("*.parquet", "**/*.jsonl*"))
    )
    return Recipe(sources=sources, parameters=Parameters(held_out=0.2, seed=1, shard_tokens=1800), vocabulary=300)


def work_of(recipe: Recipe, workers: int) -> Preparing:
    plan = plan_digest(recipe, list_files(recipe))
    return Preparing(recipe=recipe, plan=plan, bucket="data", datasets="datasets/", workers=workers)


def together(work: Preparing, folder: Path, client: Any) -> str:
    """Run all workers at once, as on machines of their own; return the digest."""
    found, errors = dict[int, str](), list[Exception]()

    def run(index: int) -> None:
        try:
            found[index] = share(work, index, folder / str(index), client, cores=1)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(work.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(set(found.values())) == 1, errors
    return found[0]


def in_bucket(client: Any, digest: str) -> dict[str, bytes]:
    rows = client.list_objects_v2(Bucket="data", Prefix=f"datasets/{digest}/")["Contents"]
    bodies = {row["Key"]: client.get_object(Bucket="data", Key=row["Key"])["Body"].read() for row in rows}
    return {key.rpartition("/")[2]: body for key, body in bodies.items()}


def forget(client: Any) -> None:
    """Remove all that workers have left."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="data"):
        for row in page.get("Contents", ()):
            client.delete_object(Bucket="data", Key=row["Key"])


def by_the_driver(recipe: Recipe, out: Path) -> dict[str, bytes]:
    make(recipe, out, lambda stage, part: None, cores=1)
    return {path.name: path.read_bytes() for path in out.iterdir() if not path.name.startswith(".")}


def test_any_number_of_workers_gives_the_drivers_bytes(client: Any, tmp_path: Path) -> None:
    recipe = put(client, "whole")
    alone = by_the_driver(recipe, tmp_path / "alone")
    assert sum(name.endswith(".bin") for name in alone) > 5, "several shards, of both parts"
    for workers in (1, 5):  # three pack samples below
        forget(client)
        digest = together(work_of(recipe, workers), tmp_path / str(workers), client)
        assert digest == hashlib.sha256(alone[DATA_MANIFEST_NAME]).hexdigest()
        assert in_bucket(client, digest) == alone
        told = client.get_object(Bucket="data", Key=work_of(recipe, workers).result)["Body"].read()
        assert Prepared.model_validate_json(told).digest == digest
    for name, body in alone.items():
        head = client.head_object(Bucket="data", Key=f"datasets/{digest}/{name}", ChecksumMode="ENABLED")
        assert base64.b64decode(head["ChecksumSHA256"]) == hashlib.sha256(body).digest(), "S3 knows every digest"


def test_any_number_of_workers_packs_equal_samples(client: Any, tmp_path: Path) -> None:
    rows = [row_of(turns) for turns in conversations(240)]
    chats = recipe_of_chats(tmp_path / "text", rows, None, PLAIN_TEMPLATE, eos_token="")
    body = (tmp_path / "text" / "chats.jsonl").read_bytes()
    client.put_object(Bucket="texts", Key="chats/chats.jsonl", Body=body)
    recipe = chats.model_copy(update={"sources": (Source(name="chats", location="s3://texts/chats"),)})
    alone = by_the_driver(recipe, tmp_path / "alone")
    assert sum(name.endswith(".bin") for name in alone) > 5 and len(body) > 5 * documents.UNIT_BYTES
    digest = together(work_of(recipe, 3), tmp_path / "3", client)
    assert in_bucket(client, digest) == alone


def test_what_a_lost_worker_has_finished_is_not_made_again(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = put(client, "lost")
    alone = by_the_driver(recipe, tmp_path / "alone")
    forget(client)
    keep, made = Parts.keep, list[str]()

    def counted(self: Parts, name: str, *more: Any) -> None:
        if sum(each.startswith("encode-") for each in made) == 2:
            raise KeyboardInterrupt  # the node is gone, in the middle of the second pass
        keep(self, name, *more)
        made.append(name)

    monkeypatch.setattr(Parts, "keep", counted)
    with pytest.raises(KeyboardInterrupt):
        share(work_of(recipe, 3), 1, tmp_path / "lost", client, cores=1)
    before = list(made)
    assert {name.partition("-")[0] for name in before} == {"read", "encode"}
    monkeypatch.setattr(Parts, "keep", lambda self, name, *more: (made.append(name), keep(self, name, *more))[1])
    made.clear()
    digest = share(work_of(recipe, 3), 0, tmp_path / "successor", client, cores=1)
    assert made and not set(made) & set(before) and len(made) == len(set(made))
    assert in_bucket(client, digest) == alone


def test_a_damaged_part_is_refused_by_its_name(client: Any, tmp_path: Path) -> None:
    forget(client)
    work = work_of(put(client, "damaged"), 1)
    share(work, 0, tmp_path / "first", client, cores=1)
    key = f"{work.parts}done/read-000000"
    whole = client.get_object(Bucket="data", Key=key)
    client.put_object(Bucket="data", Key=key, Body=whole["Body"].read()[:-1] + b"x", Metadata=whole["Metadata"])
    with pytest.raises(StorageError, match=r"a part is damaged.*read-000000"):
        share(work, 0, tmp_path / "again", client, cores=1)


def test_files_that_the_driver_has_not_listed_so_are_refused(client: Any, tmp_path: Path) -> None:
    work = work_of(put(client, "listed"), 1)
    client.put_object(Bucket="texts", Key="listed/late.jsonl", Body=lines(0, 3))
    with pytest.raises(DataError, match="not the files that the driver has listed"):
        share(work, 0, tmp_path, client, cores=1)


def test_a_file_that_cannot_be_read_is_told_with_its_line(client: Any, tmp_path: Path) -> None:
    recipe = put(client, "cut")
    whole = gzip.compress(lines(0, 3000))
    client.put_object(Bucket="texts", Key="cut/deep/b.jsonl.gz", Body=whole[: len(whole) * 2 // 3])
    with pytest.raises(DataError, match=r"cut/deep/b\.jsonl\.gz, line \d\d+: ") as told:
        share(work_of(recipe, 1), 0, tmp_path, client, cores=1)
    line = int(str(told.value).partition(", line ")[2].partition(":")[0])
    assert 1000 < line < 3000, "near where the file was cut"
