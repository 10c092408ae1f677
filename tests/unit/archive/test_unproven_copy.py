"""What no format recognised: copied as it is, byte for byte, told as no checkpoint, and never left out."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest

from infra.archive.bucket import concurrently
from infra.archive.judged import Unproven
from infra.archive.manifest import MANIFEST_NAME
from infra.archive.surroundings import OnlyCopied
from infra.archive.unproven import Left, left_of
from infra.errors import PermanentError
from tests.manifests import manifest_of, seal, shard_at
from tests.unit.archive.archive_story import CAMPAIGN, PREFIX, archiver, commit, refused, site_at
from trainer.contract.workload import SealedCheckpoints, WorkloadConfig

FOLDER = f"{PREFIX}/unproven/attempt-0002"


def site_of(root: Path, tier: str = "shared") -> Any:
    made = site_at(root)
    checkpoints = SealedCheckpoints.model_validate({"format": "lightning", "folder": "/own", "keep": 2, "tier": tier})
    config = WorkloadConfig(
        identity="i", launcher="none", command=("a",), env={}, folder="/", steps=30, checkpoints=checkpoints,
        save_every=10, grace_s=60, config_digest="c",
    )  # fmt: skip
    (made.root / "workload.json").write_text(config.model_dump_json())
    made.own = made.root / "shared" / CAMPAIGN / "own"
    made.own.mkdir(parents=True)
    return made


@pytest.fixture
def site(tmp_path: Path) -> Any:
    return site_of(tmp_path)


def run(site: Any, **changes: Any) -> Any:
    made = archiver(site, here=PermanentError("evaluated"))
    made.config = made.config.model_copy(update={"workload": True, "attempt": 2, **changes})
    made.leftovers.config = made.config
    made.leftovers.copy.attempt, made.leftovers.copy.folder = 2, "unproven/attempt-0002"
    return made


def write(site: Any, name: str, body: bytes = b"a model") -> Path:
    path: Path = site.own / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


def account(site: Any, *entries: str, files: int | None = None, **changes: Any) -> None:
    told: dict[str, Any] = {
        "format": 1,
        "attempt": 2,
        "at": 1.0,
        "ended": True,
        "files": len(entries) if files is None else files,
    }
    told |= {"bytes": 7, "newest": "x", "newest_at": 1.0, "entries": entries, "why": "no *.ckpt", "fits": "torch"}
    (site.own.parent / "unrecognised.json").write_text(json.dumps(told | changes))


def copied(site: Any) -> dict[bytes, bytes]:
    """What S3 holds of it, by the manifest: the job's path -> bytes, whose digests are compared here."""
    manifest = json.loads(site.s3.held[f"{FOLDER}/manifest.json"][0])
    found = {}
    for row in manifest["files"]:
        body = site.s3.held[row["object"]["key"]][0]
        assert hashlib.sha256(body).hexdigest() == row["object"]["sha256"] and len(body) == row["object"]["size_bytes"]
        found[unquote_to_bytes(row["path"])] = body
    return found


def test_a_job_whose_checkpoints_nobody_recognised_is_copied_whole_the_manifest_last(site: Any) -> None:
    write(site, "run/epoch=3-val_loss=0.5.ckpt")
    write(site, "notes.txt", b"")
    account(site, "run", "notes.txt", files=2)
    with pytest.raises(OnlyCopied) as ended:
        run(site).run()
    assert copied(site) == {b"run/epoch=3-val_loss=0.5.ckpt": b"a model", b"notes.txt": b""}
    assert ended.value.summary == {
        "copied": {"prefix": f"s3://b/{FOLDER}", "files": 2, "bytes": 7, "why": "no *.ckpt", "fits": "torch"}
    }
    calls, last = site.s3.calls, "put unproven/attempt-0002/manifest.json"
    sent = [call for call in calls if call.startswith("put ")]
    assert sent[-1] == last and MANIFEST_NAME not in str(sent)
    assert all(call.replace("put ", "get ") in calls[: calls.index(last)] for call in sent[:-1]), "each is read back"


@pytest.mark.parametrize("told", [None, b"{", b'{"format": 1}', "running", "link"])
def test_without_an_account_of_the_end_all_that_is_not_sealed_is_copied(site: Any, told: Any) -> None:
    write(site, "ckpt.pt")
    if told == "running":
        account(site, ended=False, files=0)
    elif told == "link":
        (site.own / "out").symlink_to(site.own.parent)
        account(site, "out/elsewhere")
    elif told is not None:
        (site.own.parent / "unrecognised.json").write_bytes(told)
    with pytest.raises(OnlyCopied, match="left no account"):
        run(site).run()
    assert copied(site) == {b"ckpt.pt": b"a model"}


@pytest.mark.parametrize("entry", ["../other", "/etc/passwd", "a/../../other"])
def test_an_account_that_leads_out_of_the_folder_is_not_believed(site: Any, entry: str) -> None:
    write(site, "ckpt.pt")
    (site.own.parent.parent / "other").mkdir()
    (site.own.parent.parent / "other/secret").write_text("of another campaign")
    account(site, entry)
    with pytest.raises(OnlyCopied, match="left no account"):
        run(site).run()
    assert copied(site) == {b"ckpt.pt": b"a model"}


def test_names_are_bytes_and_links_and_empty_folders_are_rows(site: Any) -> None:
    odd = [
        b"\xff\xfe.pt",
        "Modèle €.pt".encode(),
        b"a%2Fb",
        b"new\nline",
        b"x" * 255,
        b"d" * 200 + b"/" + b"\xe9" * 255,
    ]
    for name in odd:
        write(site, os.fsdecode(name), name)
    (site.own / "empty").mkdir()
    (site.own / "latest").symlink_to("a%2Fb")
    (site.own / "out").symlink_to("/nowhere/model")
    os.mkfifo(site.own / "pipe")
    with pytest.raises(OnlyCopied):
        run(site).run()
    assert copied(site) == {name: name for name in odd}
    assert all(len(key.encode()) <= 1024 for key in site.s3.held)
    manifest = json.loads(site.s3.held[f"{FOLDER}/manifest.json"][0])
    assert manifest["links"] == {"latest": "a%252Fb", "out": "/nowhere/model"}
    assert (manifest["empty_folders"], manifest["not_copied"]) == (["empty"], ["pipe"])


def test_beside_a_golden_checkpoint_only_what_is_unrecognised_is_copied(site: Any) -> None:
    commit(site, 30, loss=None)
    write(site, "step-30/model.pt")
    write(site, "best/model.pt", b"the best")
    account(site, "best")
    made = run(site)
    manifest = made.run()
    assert manifest.step == 30 and copied(site) == {b"best/model.pt": b"the best"}
    assert manifest.unproven == f"{FOLDER}/manifest.json" and made.copied["files"] == 1
    assert run(site).run() == manifest, "another try reads it back and sends nothing anew"


def test_where_all_is_recognised_nothing_is_copied_and_nothing_is_claimed(site: Any) -> None:
    commit(site, 30, loss=None)
    write(site, "step-30/model.pt")
    account(site)
    made = run(site)
    assert made.run().unproven == "" and not made.copied
    assert not any("unproven" in key for key in site.s3.held)


def test_a_job_that_still_has_what_was_damaged_in_its_sealed_step_is_copied_whole(site: Any) -> None:
    commit(site, 20, loss=None)
    commit(site, 30, loss=None).write_bytes(b"?" * 17)
    write(site, "step-30/model.pt")
    account(site)
    assert run(site).run().step == 20 and copied(site) == {b"step-30/model.pt": b"a model"}


def test_damaged_checkpoints_hold_the_campaign_also_where_all_else_is_copied(site: Any) -> None:
    commit(site, 30, loss=None).write_bytes(b"?")
    write(site, "step-30/model.pt")
    account(site)
    with pytest.raises(PermanentError, match=r"no sound checkpoint.*all that the job left is at s3://b/.*/unproven"):
        run(site).run()
    assert copied(site) == {b"step-30/model.pt": b"a model"}


def test_a_checkpoint_that_the_record_knows_and_nobody_finds_holds_the_campaign(site: Any) -> None:
    write(site, "ckpt.pt")
    with pytest.raises(PermanentError, match="no sound checkpoint"):
        run(site, committed_step=30).run()


def test_nothing_at_all_is_no_copy(site: Any) -> None:
    with pytest.raises(PermanentError, match="no sound checkpoint is on the shared tier; seen: none at all"):
        run(site).run()


def test_what_the_account_names_and_the_tier_does_not_have_is_no_copy(site: Any) -> None:
    account(site, "ckpt.pt", files=3)
    with pytest.raises(PermanentError, match="is not on the shared tier; seen: 3 files"):
        run(site).run()
    commit(site, 30, loss=None)
    with pytest.raises(Unproven, match="is not on the shared tier") as held:
        run(site).run()
    assert held.value.summary["step"] == 30 and held.value.summary["part"] == "the copy of what else the job left"


def test_of_nodes_with_disks_of_their_own_all_that_they_brought_is_copied(tmp_path: Path) -> None:
    site = site_of(tmp_path, "local")
    commit(site, 30, loss=None)
    write(site, "node-0000/best.pt")
    write(site, "node-0001/best.pt", b"another")
    account(site, "best.pt")
    assert run(site).run().step == 30
    assert copied(site) == {b"node-0000/best.pt": b"a model", b"node-0001/best.pt": b"another"}


def sealed_from(site: Any, step: int, root: str, of: str = "", **more: Any) -> None:
    """Commit a step with the tree of the job's file or folder `root`, whose file is `of`."""
    folder = commit(site, step, loss=None).parents[1]
    kind = "folder" if of else "file"
    tree = {"format": 1, "root": root, "kind": kind, "files": {of: {"shard": "a.pt", "mode": 420}}}
    extra = folder / "attempt-0001/tree-0000.json"
    extra.write_text(json.dumps({**tree, "links": {}, "folders": [], **more}))
    shards = (shard_at(folder / "attempt-0001/a.pt"), shard_at(extra))
    seal(folder, manifest_of(step, shards, campaign=CAMPAIGN, identity="own", evaluation_loss=None))


def test_what_was_sealed_and_written_again_since_is_copied_without_an_account(site: Any) -> None:
    sealed, again = write(site, "ckpt-30.pt"), write(site, "ckpt.pt")
    for step, name in ((30, "ckpt-30.pt"), (40, "ckpt.pt")):
        sealed_from(site, step, name)
    os.utime(sealed, (1, 1))
    os.utime(again, (2e9, 2e9))
    assert run(site).run().step == 40 and copied(site) == {b"ckpt.pt": b"a model"}


def test_a_copy_that_fails_leaves_the_golden_checkpoint_and_says_what_is_missing(site: Any) -> None:
    commit(site, 30, loss=None)
    write(site, "best.pt")
    account(site, "best.pt")
    put = site.s3.put_object

    def refuse(Key: str, **rest: Any) -> None:
        if "unproven" in Key:
            raise refused("AccessDenied", 403)
        put(Key=Key, **rest)

    site.s3.put_object = refuse
    with pytest.raises(Unproven, match="AccessDenied") as held:
        run(site).run()
    assert held.value.summary["step"] == 30 and f"{PREFIX}/{MANIFEST_NAME}" in site.s3.held
    assert f"{FOLDER}/manifest.json" not in site.s3.held


def test_what_lies_in_the_place_of_a_copy_is_never_overwritten(site: Any) -> None:
    write(site, "ckpt.pt")
    site.s3.held[f"{FOLDER}/files/ckpt.pt"] = (b"another", {"sha256": hashlib.sha256(b"another").hexdigest()})
    with pytest.raises(PermanentError, match="not copied whole"):
        run(site).run()
    assert site.s3.held[f"{FOLDER}/files/ckpt.pt"][0] == b"another"


def test_a_sealed_folder_of_which_one_file_was_written_again_is_copied(site: Any) -> None:
    for step, again_at in ((30, 1), (40, 2e9)):
        sealed_from(site, step, f"step-{step}", "model.pt")
        for name, at in (("model.pt", again_at), ("old.pt", 1)):
            os.utime(write(site, f"step-{step}/{name}"), (at, at))
        os.utime(site.own / f"step-{step}", (1, 1))
    left = left_of(site.own.parent, entire=False)
    assert sorted(left.files) == [site.own / "step-40/model.pt", site.own / "step-40/old.pt"]
    assert len(left_of(site.own.parent, entire=True).files) == 4


def test_what_shares_its_folder_with_others_or_is_unreadable_saves_nothing_from_a_copy(site: Any) -> None:
    sealed_from(site, 30, ".", "model.pt")
    sealed_from(site, 31, "part", "model.pt", part=True)
    sealed_from(site, 32, "bad", "model.pt")
    (site.own.parent / "step-00000032/manifest.json").write_text("{")
    for name in ("model.pt", "part/model.pt", "bad/model.pt"):
        os.utime(write(site, name), (1, 1))
    assert len(left_of(site.own.parent, entire=False).files) == 3


def test_a_sealed_folder_that_may_not_be_looked_into_counts_as_it_was(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed_from(site, 30, "step-30", "model.pt")
    write(site, "step-30/model.pt"), write(site, "new.pt")

    def refuse(self: Path, pattern: str) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "rglob", refuse)
    assert left_of(site.own.parent, entire=False).files == [site.own / "new.pt"]


def test_pipes_alone_and_links_alone_are_content_too(site: Any) -> None:
    os.mkfifo(site.own / "pipe")
    assert left_of(site.own.parent, entire=True)
    (site.own / "pipe").unlink()
    assert not left_of(site.own.parent, entire=True)
    (site.own / "link").symlink_to("/nowhere")
    assert left_of(site.own.parent, entire=True)


def test_a_file_that_cannot_be_read_ends_the_copy_by_its_name(site: Any) -> None:
    left = Left(site.own, "why", files=[site.own / "gone.pt"])
    with pytest.raises(PermanentError, match=r"cannot be read to be copied; seen: gone.pt: No such file"):
        run(site).leftovers.copy.send(left)


def test_sixteen_files_are_copied_at_once_and_few_more_wait() -> None:
    together, begun = threading.Barrier(16), itertools.count()

    def copy(path: Path) -> Any:
        if next(begun) < 16:
            together.wait(timeout=30)
        return path

    asked = itertools.count()
    paths = (Path(str(next(asked))) for _ in range(100))
    found = concurrently(copy, paths, 16)
    assert next(found) and next(asked) <= 33
    assert len(list(found)) == 99
