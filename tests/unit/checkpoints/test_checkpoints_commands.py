"""`bivouac checkpoints` on a folder, and on the same below an s3:// prefix: seen, verified, restored, pruned."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path

import boto3
import pytest
from rich.console import Console

from infra.archive.manifest import MANIFEST_NAME
from infra.checkpoints import work
from infra.checkpoints.find import find
from infra.cli.data import checkpoints as commands
from infra.errors import PermanentError, UserError
from tests.manifests import manifest_of, seal, shard_at
from trainer.contract import attempt_folder, step_folder

REGION, BUCKET = "us-east-1", "elsewhere"


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place with sound steps 10, 20 and 30, and the leavings of step 40."""
    root = tmp_path / "tier"
    for step in (10, 20, 30):
        commit(root, step)
    (root / step_folder(40) / attempt_folder(1)).mkdir(parents=True)
    (root / step_folder(40) / attempt_folder(1) / "a.pt").write_bytes(b"half")
    if request.param == "folder":
        return str(root)
    endpoint = request.getfixturevalue("moto_server")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    client, prefix = boto3.client("s3", region_name=REGION), tmp_path.name
    client.create_bucket(Bucket=BUCKET)
    for path in root.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), BUCKET, f"{prefix}/{path.relative_to(root)}")
    return f"s3://{BUCKET}/{prefix}"


def commit(root: Path, step: int, size: int = 3000) -> None:
    shards = []
    for name in ("a.pt", "b.pt"):
        path = root / step_folder(step) / attempt_folder(1) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(hashlib.sha256(f"{step}{name}".encode()).digest() * (size // 32))
        shards.append(shard_at(path))
    manifest = manifest_of(step, tuple(shards), campaign="c", tokens=step * 100, loss=3.0 - step / 100)
    seal(root / step_folder(step), manifest)


def damage(place: str, step: int, name: str, content: bytes | None) -> None:
    """Overwrite a shard or the manifest, or remove it."""
    file = (
        f"{step_folder(step)}/{name}" if name == "manifest.json" else f"{step_folder(step)}/{attempt_folder(1)}/{name}"
    )
    if not place.startswith("s3://"):
        path = Path(place) / file
        path.unlink() if content is None else path.write_bytes(content)
        return
    client, key = boto3.client("s3", region_name=REGION), f"{place.removeprefix(f's3://{BUCKET}/')}/{file}"
    client.delete_object(Bucket=BUCKET, Key=key) if content is None else client.put_object(
        Bucket=BUCKET, Key=key, Body=content
    )


def told(command: object, *arguments: object) -> tuple[int, str]:
    out = io.StringIO()
    code = command(*arguments, Console(width=200, file=out))  # type: ignore[operator]
    return int(code), out.getvalue()


def test_every_step_is_listed_with_its_state(place: str) -> None:
    code, text = told(commands.list_command, place, REGION, True)
    rows = json.loads(text)
    assert code == 0 and [row["step"] for row in rows] == [40, 30, 20, 10]
    assert [row["committed"] for row in rows] == [False, True, True, True]
    assert "no manifest" in rows[0]["why"] and (rows[1]["here"], rows[1]["tokens"]) == (2, 3000)


def test_verify_reads_all_and_names_each_bad_shard(place: str) -> None:
    assert told(commands.verify_command, place, None, REGION, True)[0] == 0
    damage(place, 30, "a.pt", b"x" * 2976)
    damage(place, 20, "b.pt", None)
    code, text = told(commands.verify_command, place, None, REGION, True)
    faults = {row["step"]: row["faults"] for row in json.loads(text)}
    assert code == 74 and set(faults[30]) == {"attempt-0001/a.pt"} and faults[10] == {}
    assert faults[20] == {"attempt-0001/b.pt": "missing"}
    assert told(commands.verify_command, place, 10, REGION, False)[0] == 0


def test_a_manifest_that_cannot_be_believed_fails_the_verification(place: str) -> None:
    damage(place, 30, "manifest.json", b"{}")
    code, text = told(commands.verify_command, place, None, REGION, True)
    faults = {row["step"]: row["faults"] for row in json.loads(text)}
    assert code == 74 and set(faults[30]) == {"manifest.json"} and not faults[20]
    code, text = told(commands.verify_command, place, 30, REGION, False)
    assert code == 74 and "NOT SOUND" in text


def test_a_restored_step_is_the_same_and_a_cut_off_restore_goes_on(place: str, tmp_path: Path) -> None:
    found, out = find(place, REGION), tmp_path / "out"
    folder, before = work.restore(found.place, 30, out, lambda text: None)
    whole = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert before == 0 and len(whole) == 3
    (folder / "manifest.json").unlink()
    shard = folder / attempt_folder(1) / "b.pt"
    content = shard.read_bytes()
    shard.unlink()
    shard.with_name(".b.pt.partial").write_bytes(content[:1000])
    _, before = work.restore(found.place, 30, out, lambda text: None)
    assert before == (3976 if place.startswith("s3://") else 2976)
    assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == whole


def test_a_wrong_remainder_of_an_earlier_restore_is_not_built_on(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "out" / step_folder(30) / attempt_folder(1)
    folder.mkdir(parents=True)
    (folder / ".a.pt.partial").write_bytes(b"y" * 1000)
    work.restore(find(place, REGION).place, 30, tmp_path / "out", lambda text: None)


def test_a_damaged_step_is_not_restored(place: str, tmp_path: Path) -> None:
    damage(place, 30, "a.pt", b"x" * 2976)
    with pytest.raises(PermanentError, match="not sound"):
        work.restore(find(place, REGION).place, 30, tmp_path / "out", lambda text: None)
    assert not (tmp_path / "out" / step_folder(30) / "manifest.json").exists()


def test_prune_shows_first_and_leaves_the_newest_proven_step(place: str) -> None:
    damage(place, 30, "a.pt", b"x" * 2976)
    code, text = told(commands.prune_command, place, 1, False, REGION, True)
    assert code == 0 and json.loads(text) == {"keep": [30, 20], "proven": 20, "drop": [10], "removed": False}
    assert [row.step for row in find(place, REGION).place.rows()] == [40, 30, 20, 10]
    told(commands.prune_command, place, 1, True, REGION, True)
    assert [row.step for row in find(place, REGION).place.rows()] == [40, 30, 20]


def test_nothing_is_pruned_where_nothing_is_proven(place: str) -> None:
    for step in (10, 20, 30):
        damage(place, step, "a.pt", b"x")
    with pytest.raises(PermanentError, match="nothing is removed"):
        told(commands.prune_command, place, 0, True, REGION, False)
    assert len(find(place, REGION).place.rows()) == 4


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_nothing_is_pruned_while_the_golden_step_cannot_be_told(place: str) -> None:
    key = f"{place.removeprefix(f's3://{BUCKET}/')}/{MANIFEST_NAME}"
    boto3.client("s3", region_name=REGION).put_object(Bucket=BUCKET, Key=key, Body=b"{")
    with pytest.raises(PermanentError, match="golden step cannot be determined"):
        told(commands.prune_command, place, 0, True, REGION, False)
    assert len(find(place, REGION).place.rows()) == 4


def test_every_shard_is_on_disk_before_the_manifest_that_vouches_for_it(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync = list[str](), os.fsync

    def watched(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    monkeypatch.setattr(work.os, "fsync", watched)
    work.restore(find(place, REGION).place, 30, tmp_path / "out", lambda text: None)
    assert {"a.pt", "b.pt", attempt_folder(1)} <= set(synced[: synced.index(".manifest.json.partial")])


def test_a_place_without_checkpoints_says_where_they_are(tmp_path: Path) -> None:
    commit(tmp_path / "shared" / "mine", 10)
    with pytest.raises(UserError) as caught:
        find(str(tmp_path / "shared"), REGION)
    assert "mine" in str(caught.value)
    assert find(str(tmp_path / "shared" / "mine" / step_folder(10)), REGION).step == 10
