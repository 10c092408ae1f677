"""Interval copies against an emulated S3 that keeps versions: what is sent, what stays, and what comes back."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.archive.bucket import ArchiveBucket
from infra.aws.transfer import Transfer
from infra.checkpoints import copies as program
from infra.checkpoints.copies import Copies, CopiesConfig
from infra.checkpoints.place import BucketPlace
from infra.errors import PermanentError
from tests.manifests import manifest_of, seal, shard_at
from tests.rehearsal.archive.copy_site import CAMPAIGN, IDENTITY, LARGE, PREFIX, commit, copies, keys, on_tier, spoil
from tests.rehearsal.archive.copy_site import site as site
from trainer.contract import COMMITTED_NAME, ExitCode, attempt_folder, step_folder
from trainer.contract.checkpoint import Ban


def steps_in_s3(site: SimpleNamespace) -> list[int]:
    return [row.step for row in copies(site).place.rows() if row.committed]


def versions(site: SimpleNamespace) -> int:
    found = site.s3.list_object_versions(Bucket=site.name)
    return len(found.get("Versions", ())) + len(found.get("DeleteMarkers", ()))


def test_the_newest_sound_step_is_sent_whole(site: SimpleNamespace) -> None:
    commit(site, 20)
    folder = commit(site, 40)
    (commit(site, 60) / attempt_folder(1) / "small.pt").write_bytes(b"an6th60")
    told = copies(site).send()
    assert (told["step"], told["objects"], told["removed"], told["locked"]) == (40, 3, [60], 0)
    assert told["place"] == f"s3://{site.name}/{PREFIX}/{step_folder(40)}"
    for path in (path for path in folder.rglob("*") if path.is_file()):
        key = f"{PREFIX}/{step_folder(40)}/{path.relative_to(folder)}"
        assert site.s3.get_object(Bucket=site.name, Key=key)["Body"].read() == path.read_bytes()
    assert steps_in_s3(site) == [40]
    with pytest.raises(PermanentError, match="small"):
        copies(site, above=40).send()


def test_a_summary_counts_all_bytes_and_no_upload_of_a_dead_job_is_billed_on(
    site: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = [f"{PREFIX}/{step_folder(30)}/attempt-0001/large.pt", f"copies/{CAMPAIGN}-2/of-another"]
    for key in begun:
        site.s3.create_multipart_upload(Bucket=site.name, Key=key)
    folder = commit(site, 40)
    told = copies(site).send()
    assert told["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def incomplete() -> list[str]:
        return [upload["Key"] for upload in site.s3.list_multipart_uploads(Bucket=site.name).get("Uploads", ())]

    assert incomplete() == begun[1:]
    site.s3.create_multipart_upload(Bucket=site.name, Key=begun[0])
    with pytest.raises(PermanentError, match="no step is newer"):
        copies(site, above=40).send()
    assert incomplete() == begun[1:], "also where there is nothing to send"

    def fails(*given: object) -> None:
        raise ClientError({"Error": {"Code": "SlowDown"}}, "ListMultipartUploads")

    monkeypatch.setattr(ArchiveBucket, "abort_uploads", fails)
    commit(site, 50)
    assert copies(site).send()["step"] == 50, "what is left is aborted another time"


def test_a_step_that_is_no_newer_than_the_record_says_is_not_read(
    site: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (20, 40):
        commit(site, step)
    monkeypatch.setattr(Copies, "_send_step", lambda self, folder, manifest: pytest.fail(f"step {manifest.step}"))
    with pytest.raises(PermanentError, match="none after step 40"):
        copies(site, above=40).send()


def test_a_step_that_the_watch_distrusts_is_neither_sent_nor_brought_back(site: SimpleNamespace) -> None:
    commit(site, 20)
    copies(site).send()
    commit(site, 40)
    copies(site, above=20).send()
    commit(site, 60)
    watch = site.root / CAMPAIGN / "watch"
    watch.mkdir()
    ban = Ban(attempt=1, first=30, last=40, why="the loss rose")
    (watch / "ban-0001-00000030.json").write_text(json.dumps(asdict(ban)))
    with pytest.raises(PermanentError, match="the loss rose"):
        copies(site, above=40).send()
    for step in (20, 40, 60):
        shutil.rmtree(site.root / CAMPAIGN / step_folder(step))
    told = copies(site).fetch()
    assert told["step"] == 20 and "the loss rose" in told["refused"][0]


def test_only_the_newest_copies_stay_and_no_version_of_an_older_one_bills_on(site: SimpleNamespace) -> None:
    told = {}
    for step in (10, 20, 30, 40, 50):
        commit(site, step)
        told = copies(site, above=step - 10).send()
        shutil.rmtree(site.root / CAMPAIGN / step_folder(step))  # the trainer's own retention
    assert steps_in_s3(site) == [50, 40, 30] and told["removed"] == [20]
    assert versions(site) == 3 * 3


def test_what_a_lock_keeps_is_hidden_and_counted(site: SimpleNamespace) -> None:
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    locked = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    site.s3.put_object_lock_configuration(Bucket=site.name, ObjectLockConfiguration=locked)
    told = {}
    for step in (10, 20, 30, 40):
        commit(site, step, large=b"in one request: moto locks no other")
        told = copies(site, above=step - 10).send()
    assert steps_in_s3(site) == [40, 30, 20] and (told["removed"], told["locked"]) == ([10], 3)


def test_a_half_sent_copy_is_finished_and_another_attempts_replaced(site: SimpleNamespace) -> None:
    commit(site, 40)
    copies(site).send()
    site.s3.delete_object(Bucket=site.name, Key=f"{PREFIX}/{step_folder(40)}/{COMMITTED_NAME}")
    assert copies(site).send()["step"] == 40 and steps_in_s3(site) == [40]
    shutil.rmtree(site.root)
    commit(site, 40, attempt=2, body=b"other")
    copies(site).send()
    assert sorted(keys(site)) == [
        f"{step_folder(40)}/{name}" for name in ("attempt-0002/large.pt", "attempt-0002/small.pt", COMMITTED_NAME)
    ]


def test_a_damaged_object_in_the_place_of_a_shard_is_sent_anew(site: SimpleNamespace) -> None:
    folder = commit(site, 40)
    copies(site).send()
    site.s3.delete_object(Bucket=site.name, Key=f"{PREFIX}/{step_folder(40)}/{COMMITTED_NAME}")
    spoil(site, 40)
    copies(site).send()
    key = f"{PREFIX}/{step_folder(40)}/attempt-0001/small.pt"
    assert (
        site.s3.get_object(Bucket=site.name, Key=key)["Body"].read() == (folder / "attempt-0001/small.pt").read_bytes()
    )


def test_a_step_that_the_campaign_has_gone_back_behind_makes_room(site: SimpleNamespace) -> None:
    for step in (20, 40, 50):
        commit(site, step)
        copies(site).send()
    shutil.rmtree(site.root)
    commit(site, 30, attempt=2)
    told = copies(site, above=20).send()
    assert told["removed"] == [40, 50] and 0 <= told["seconds"] < 3600
    assert steps_in_s3(site) == [30, 20]


def test_what_cannot_be_removed_fails_no_copy(site: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise ClientError({"Error": {"Code": "SlowDown"}}, "DeleteObject")

    monkeypatch.setattr(BucketPlace, "remove", fails)
    for step in (10, 20, 30, 40):
        commit(site, step)
        told = copies(site, above=step - 10).send()
        assert (told["step"], told["removed"], told["locked"]) == (step, [], 0)
    assert steps_in_s3(site) == [40, 30, 20, 10]


def test_the_program_sends_and_fetches_and_its_last_word_says_how_it_went(
    site: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CopiesConfig(campaign=CAMPAIGN, identity=IDENTITY, region="us-east-1", archive_bucket=site.name)
    (tmp_path / "copies.json").write_text(config.model_dump_json())
    words: list[str] = []
    monkeypatch.setattr(program, "CONFIG", str(tmp_path / "copies.json"))
    monkeypatch.setattr(program, "SHARED_CHECKPOINTS", str(site.root))
    monkeypatch.setattr(program, "Account", lambda region: SimpleNamespace(client=lambda service: site.s3))
    monkeypatch.setattr(program, "last_word", words.append)
    assert program.main(["fetch"]) == ExitCode.STORAGE and "no copy in S3 is sound" in words[-1]
    commit(site, 40)
    assert program.main(["send"]) == 0 and json.loads(words[-1])["step"] == 40
    shutil.rmtree(site.root)
    assert program.main(["fetch"]) == 0 and json.loads(words[-1])["refused"] == [] and list(on_tier(site)) == [40]
    with pytest.raises(KeyError, match="steal"):
        program.main(["steal"])
    monkeypatch.setattr(Copies, "send", lambda self: (_ for _ in ()).throw(PermanentError("x" * 9000, seen="y")))
    assert program.main(["send"]) == ExitCode.STORAGE and len(words[-1]) == 4000, "what a pod's status holds"


def test_an_s3_that_does_not_answer_is_no_damage_of_a_step(
    site: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(site, 20), commit(site, 40)
    copier = copies(site)

    def fails(*given: object) -> None:
        raise ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")

    monkeypatch.setattr(ArchiveBucket, "place", fails)
    with pytest.raises(ClientError, match="SlowDown"):
        copier.send()
    assert steps_in_s3(site) == []


def commit_with_base(site: SimpleNamespace, step: int, base: bytes = LARGE) -> None:
    folder = site.root / CAMPAIGN / step_folder(step)
    paths = [folder / attempt_folder(1) / name for name in ("frozen_mp_rank_00.pt", "mp_rank_00_model_states.pt")]
    paths[0].parent.mkdir(parents=True)
    for path, content in zip(paths, (base, b"adapters %d" % step), strict=True):
        path.write_bytes(content)
    shards = tuple(shard_at(path) for path in paths)
    seal(folder, manifest_of(step, shards, campaign=CAMPAIGN, identity=IDENTITY))


def test_frozen_weights_are_uploaded_once_and_a_damaged_object_is_not_taken_again(
    site: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads, upload = list[str](), Transfer.upload

    def note(self: Transfer, key: str, *rest: Any) -> int:
        uploads.append(key.rpartition("step-000000")[2].partition("/")[0])
        return upload(self, key, *rest)

    monkeypatch.setattr(Transfer, "upload", note)
    for step in (20, 40):
        commit_with_base(site, step)
        copies(site).send()
    assert uploads == ["20"] and steps_in_s3(site) == [40, 20]
    shutil.rmtree(site.root)
    assert copies(site).fetch()["step"] == 40
    for step in (20, 40):
        key = f"{PREFIX}/{step_folder(step)}/{attempt_folder(1)}/frozen_mp_rank_00.pt"
        site.s3.put_object(Bucket=site.name, Key=key, Body=b"?" * len(LARGE))
    commit_with_base(site, 60)
    copies(site).send()
    assert uploads == ["20", "60"]
    shutil.rmtree(site.root)
    assert copies(site).fetch()["step"] == 60
    base = site.root / CAMPAIGN / step_folder(60) / attempt_folder(1) / "frozen_mp_rank_00.pt"
    assert base.read_bytes() == LARGE
    commit_with_base(site, 80, base=LARGE[::-1])
    copies(site).send()
    assert uploads == ["20", "60", "80"], "other weights are no copy"
