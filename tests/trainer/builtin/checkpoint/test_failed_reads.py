"""Whose trouble a file is that cannot be read: its own, for good, or that of the storage under it, for now."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.drills.parts.storage_gang import PipeGang
from tests.manifests import manifest_of, shard_at
from trainer.buckets.sources import BucketSource
from trainer.builtin.assembly import Supply
from trainer.builtin.checkpoint import restore, search
from trainer.builtin.checkpoint.convert import initial
from trainer.builtin.checkpoint.convert.weights import verified_manifest
from trainer.builtin.checkpoint.neighbour import Neighbours
from trainer.builtin.checkpoint.search import Search
from trainer.builtin.checkpoint.tiers import Tiers, campaign_tiers
from trainer.builtin.config import load_config
from trainer.builtin.data.held_out import open_held_out
from trainer.builtin.data.prepare.vocabulary import given_tokenizer
from trainer.builtin.data.reader import TokenRow, load_manifest, verify_shards
from trainer.builtin.gang import Gang
from trainer.client.bivouac_data.reader import folder_opener
from trainer.contract import (
    COMMITTED_NAME,
    DATA_MANIFEST_NAME,
    TOKENIZER_NAME,
    ExitCode,
    Layout,
    TrainConfig,
    attempt_folder,
)
from trainer.errors import OutOfFiles, OutOfMemory, StorageError, classify
from trainer.place import Paths

PASSING = ("EIO", "ESHUTDOWN", "ESTALE", "ETIMEDOUT", "ENOTCONN", "EHOSTDOWN", "ENODEV")
LIMITS = ("ENOMEM", "EMFILE", "ENFILE")
LASTING = ("ENOENT", "ENOTDIR", "EISDIR", "EACCES", "EPERM", "ELOOP")
Read = Callable[[Path, TrainConfig, Path], object]


def supply(data: Path, config: TrainConfig, folder: Path) -> object:
    alone = Gang(0, 0, 1, None)  # type: ignore[arg-type]
    return Supply.open(config, Paths(folder, data, folder, folder, folder), alone, "tiny-1")


def tokens(data: Path, *_: object) -> object:
    manifest = load_manifest(data, "")
    out = np.empty(1, dtype=manifest.dtype)
    TokenRow(manifest.train, manifest.dtype, folder_opener(data)).copy_window(0, out)
    return out


def config_file(data: Path, config: TrainConfig, folder: Path) -> object:
    (folder / "train.json").write_text(config.model_dump_json())
    return load_config(folder / "train.json")


def weights(data: Path, config: TrainConfig, folder: Path) -> object:
    (folder / initial.INDEX).write_text('{"weight_map": {"w": "a.safetensors"}}')
    return initial._places(folder)


def step_folder(data: Path, config: TrainConfig, folder: Path) -> object:
    tier = campaign_tiers(folder, folder / "shared", "tiny").local
    if not tier.steps():
        tier.publish(manifest_of(5, (), rng_included=False), 1)
    return verified_manifest(tier.folder(5))


READERS: dict[str, tuple[str, Read]] = {
    "the supply's manifest": (DATA_MANIFEST_NAME, supply),
    "the supply's shards": ("train-00000.bin", supply),
    "the supply's indexes": ("train-00000.idx", supply),
    "a manifest": (DATA_MANIFEST_NAME, lambda data, config, folder: load_manifest(data, "")),
    "a shard's digest": ("train-00000.bin", lambda data, *_: verify_shards(data, load_manifest(data, ""))),
    "tokens": ("train-00000.bin", tokens),
    "the held-out part": ("validation-00000.bin", lambda data, *_: open_held_out(data, "", 512, 64)),
    "the configuration": ("train.json", config_file),
    "weights to start from": (initial.INDEX, weights),
    "a step's manifest": (COMMITTED_NAME, step_folder),
    "the tokenizer": (TOKENIZER_NAME, lambda data, *_: given_tokenizer(data / TOKENIZER_NAME)),
}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """A kernel that answers an open for reading of files of this name with an error."""

    def fail(name: str, number: int) -> None:
        def instead(real: Any) -> Any:
            def answer(path: Any, *rest: Any, **named: Any) -> Any:
                writing = rest and isinstance(rest[0], str) and "w" in rest[0]
                if not isinstance(path, int) and os.path.basename(os.fspath(path)) == name and not writing:
                    raise OSError(number, os.strerror(number), str(path))
                return real(path, *rest, **named)

            return answer

        monkeypatch.setattr(io, "open", instead(io.open))
        monkeypatch.setattr(os, "open", instead(os.open))

    return fail


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", PASSING + LIMITS + LASTING)
def test_only_what_the_files_say_holds_a_campaign_and_what_storage_says_is_tried_again(
    reader: str,
    name: str,
    data: Path,
    config: TrainConfig,
    tmp_path: Path,
    failing: Callable[[str, int], None],
) -> None:
    file, read = READERS[reader]
    read(data, config, tmp_path)
    failing(file, getattr(errno, name))
    with pytest.raises(Exception) as raised:
        read(data, config, tmp_path)
    known = classify(raised.value)
    codes = {"the configuration": ExitCode.USER, "weights to start from": ExitCode.USER}
    wanted = {**codes, "a step's manifest": ExitCode.STORAGE}.get(reader, ExitCode.DATA)
    passing = ExitCode.INTERNAL if name in LIMITS else ExitCode.STORAGE
    assert known.exit_code == (wanted if name in LASTING else passing), known
    assert file in str(known) and known.cure, known
    if name in ("EACCES", "EPERM"):
        assert "permission to read" in known.what


def test_a_bucket_tells_what_is_not_there_from_what_cannot_be_reached(data: Path, config: TrainConfig) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    # moto's world is the process's: the bucket's name is this test's own
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    source = BucketSource("s3://unread/one")
    source._made = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    try:
        with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
            list(source.read(DATA_MANIFEST_NAME))
        source._made.create_bucket(Bucket="unread")
        with pytest.raises(FileNotFoundError, match="NoSuchKey"):
            list(source.read(DATA_MANIFEST_NAME))
    finally:
        server.stop()
    with pytest.raises(OSError, match="EndpointConnectionError") as unreachable:
        list(source.read(DATA_MANIFEST_NAME))
    assert type(unreachable.value) is OSError


def test_the_digest_of_the_data_is_asked_for_as_before(data: Path, config: TrainConfig, tmp_path: Path) -> None:
    other = config.model_copy(
        update={"data": config.data.model_copy(update={"manifest_digest": hashlib.sha256(b"other").hexdigest()})}
    )
    with pytest.raises(Exception, match="not the data") as raised:
        supply(data, other, tmp_path)
    assert classify(raised.value).exit_code == ExitCode.DATA


@pytest.mark.parametrize("file", ["manifest.json", "a.pt"])
@pytest.mark.parametrize(("name", "times", "taken"), [("ESHUTDOWN", 2, 7), ("ESHUTDOWN", 99, 5), ("EACCES", 2, 5)])
def test_a_step_is_given_up_for_an_older_one_only_when_the_shared_tier_stays_unreadable(
    file: str, name: str, times: int, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = campaign_tiers(tmp_path / "local", tmp_path / "shared", "tiny")
    for step in (5, 7):
        path = tiers.shared.folder(step) / attempt_folder(1) / "a.pt"
        path.parent.mkdir(parents=True)
        torch.save({"w": torch.arange(10)}, path)
        tiers.shared.publish(manifest_of(step, (shard_at(path),), rng_included=False), 1)
    real, pauses, left = os.open, list[float](), [times]

    def failing(path: Any, *rest: Any, **named: Any) -> int:
        if left[0] and Path(path).is_relative_to(tiers.shared.folder(7)) and Path(path).name == file:
            left[0] -= 1
            raise OSError(getattr(errno, name), name, str(path))
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", failing)
    for module in (search, restore):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic))
    gang: Any = PipeGang(0, 0, 1, None, None)  # type: ignore[arg-type]
    found = restore._choose(restore._candidates(gang, tiers), Search(gang, tiers, Neighbours(0), 2), Layout(1), 1)
    assert found is not None and found[0].step == taken
    assert len(pauses) == (0 if name == "EACCES" else min(times, 3))


def steps_with(failing: Callable[[str, int], None], tmp_path: Path, number: int) -> Tiers:
    """Three steps on a node's disk, of which no manifest can be opened."""
    tiers = campaign_tiers(tmp_path / "local", tmp_path / "shared", "tiny")
    for step in (5, 7, 9):
        tiers.local.publish(manifest_of(step, (), rng_included=False), 1)
    failing(COMMITTED_NAME, number)
    return tiers


@pytest.mark.parametrize(("name", "error"), [("EMFILE", OutOfFiles), ("ENOMEM", OutOfMemory)])
def test_a_limit_says_nothing_of_a_tiers_steps(
    name: str, error: type[Exception], tmp_path: Path, failing: Callable[[str, int], None]
) -> None:
    tiers = steps_with(failing, tmp_path, getattr(errno, name))
    for look in (tiers.local.committed, lambda: tiers.local.reclaim({}, 1, 9)):
        with pytest.raises(error):
            look()
    assert tiers.local.steps() == [9, 7, 5]


def test_a_step_whose_manifest_cannot_be_read_now_is_dropped_by_no_retention(
    tmp_path: Path, failing: Callable[[str, int], None]
) -> None:
    tiers = steps_with(failing, tmp_path, errno.EIO)
    assert tiers.local.reclaim({}, 1, 9) == tiers.local.retain(1, 9, (), 1, 9) == []
    with pytest.raises(StorageError, match="cannot be read"):
        tiers.local.publish(manifest_of(9, (), rng_included=False, loss=2.0), 1)
    assert tiers.local.steps() == [9, 7, 5]


def test_a_folder_of_steps_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object = ".") -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    tier = campaign_tiers(tmp_path / "local", tmp_path / "shared", "tiny").local
    assert tier.steps() == []
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        tier.steps()
    assert tier.drop(5, 1) is False
