"""The archiver over S3 and a shared tier in memory: every byte is read back, and a wrong one is no archive."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import HTTPClientError

from infra.archive import archive
from infra.archive.bucket import Content, Unsound
from infra.archive.manifest import MANIFEST_NAME, EvaluationProof
from infra.aws.transfer import MIB
from infra.errors import PermanentError
from tests.manifests import manifest_of, seal, shard_at
from tests.unit.archive.archive_story import BODY, CAMPAIGN, IDENTITY, PREFIX, a_file, archiver, commit, site_at
from trainer.contract import Shard, step_folder


@pytest.fixture
def site(tmp_path: Path) -> Any:
    return site_at(tmp_path)


def test_all_that_is_placed_is_read_back_before_the_manifest_is_written(site: Any) -> None:
    commit(site, 30)
    manifest = archiver(site).run()
    calls = site.s3.calls
    sent = [call.removeprefix("put ") for call in calls if call.startswith("put ")]
    assert sent[-1] == MANIFEST_NAME and len(sent) == len(set(sent)) == len(manifest.objects) + 1
    assert {f"golden/{step_folder(30)}/{name}" for name in ("attempt-0001/a.pt", "manifest.json")} <= set(sent)
    assert {"train.json", "data/tokenizer.json", "data/validation-00000.bin", "record/spec.json"} <= set(sent)
    assert {"huggingface/model.safetensors", "huggingface/README.md"} <= set(sent)
    published = calls.index(f"put {MANIFEST_NAME}")
    assert all(f"get {name}" in calls[calls.index(f"put {name}") : published] for name in sent[:-1])
    assert all(calls.count(f"get {name}") == 1 for name in sent[:-1]), "once is proof"
    assert (manifest.proof, manifest.step, manifest.reference_evaluation_loss) == (EvaluationProof.RECORDED, 30, 2.25)
    # Of all that came back only the checkpoint is needed again.
    kept = [path.relative_to(site.root / "work").parts[0] for path in (site.root / "work").rglob("*") if path.is_file()]
    assert (
        set(kept) <= {"golden", "huggingface", "logs"}
        and (site.root / "work/golden" / step_folder(30) / "attempt-0001/a.pt").read_bytes() == BODY + b"30"
    )


def test_who_comes_again_reads_everything_back_and_sends_nothing(site: Any) -> None:
    commit(site, 30)
    first = archiver(site).run()
    site.s3.calls.clear()
    assert archiver(site, restored=9.9).run() == first
    assert sorted(call.removeprefix("get ") for call in site.s3.calls) == sorted(
        [MANIFEST_NAME, *(item.key.removeprefix(f"{PREFIX}/") for item in first.objects)]
    )
    key = first.objects[0].key
    site.s3.held[key] = (b"?", site.s3.held[key][1])
    with pytest.raises(Unsound):
        archiver(site).run()


def test_bytes_that_come_back_wrong_are_no_archive(site: Any) -> None:
    commit(site, 30)
    site.s3.spoiled = 1
    with pytest.raises(PermanentError, match="the archive has another object"):
        archiver(site).run()
    assert f"{PREFIX}/{MANIFEST_NAME}" not in site.s3.held


@pytest.mark.parametrize("recorded", [None, 2.5])
def test_another_loss_after_the_read_back_is_no_archive(site: Any, recorded: float | None) -> None:
    commit(site, 30, loss=recorded)
    with pytest.raises(PermanentError, match="does not evaluate as the one that was archived"):
        archiver(site, restored=2.5000000000000004, here=2.5).run()
    assert f"{PREFIX}/{MANIFEST_NAME}" not in site.s3.held
    proof = archiver(site, restored=2.5, here=2.5).run().proof
    assert proof is (EvaluationProof.EVALUATED if recorded is None else EvaluationProof.RECORDED)


def test_a_step_that_does_not_evaluate_is_refused_only_where_its_bytes_are_wrong(site: Any) -> None:
    commit(site, 20)
    shard = commit(site, 30, loss=None)
    with pytest.raises(PermanentError, match="torch says no"):
        archiver(site, here=PermanentError("torch says no", seen="", cure="")).run()
    shard.write_bytes(shard.read_bytes().upper())
    manifest = archiver(site, here=PermanentError("torch says no", seen="", cure="")).run()
    assert manifest.step == 20 and manifest.accounts_for == 30 and "its digest" in manifest.refused[0]


def test_the_newest_sound_step_is_carried_and_newer_ones_are_refused_by_name(site: Any) -> None:
    commit(site, 10)
    commit(site, 20)
    commit(site, 30).unlink()
    other = commit(site, 40)
    other.write_bytes(other.read_bytes().upper())
    commit(site, 50, identity="other")
    (site.root / "shared" / CAMPAIGN / step_folder(60)).mkdir()
    manifest = archiver(site, committed=50).run()
    assert manifest.step == 20 and manifest.accounts_for == 50
    assert [row.partition(":")[0] for row in manifest.refused] == [step_folder(step) for step in (50, 40, 30)]
    assert not any(step_folder(10) in item.key for item in manifest.objects)
    assert [path.name for path in (site.root / "work/golden").iterdir()] == [step_folder(20)]


def test_a_step_that_the_watch_distrusts_is_golden_only_if_a_later_attempt_wrote_it(site: Any) -> None:
    commit(site, 20)
    folder = commit(site, 30).parents[2]
    (folder / "watch").mkdir()
    ban = folder / "watch/ban-0001-00000025.json"
    ban.write_text(json.dumps({"attempt": 0, "first": 25, "last": 30, "why": "the loss rose"}))
    assert next(archiver(site).source.sound())[1].step == 30, "attempt 1 wrote it, after the roll-back"
    ban.write_text(json.dumps({"attempt": 1, "first": 25, "last": 30, "why": "the loss rose"}))
    manifest = archiver(site).run()
    assert manifest.step == 20 and manifest.accounts_for == 30 and "the loss rose" in manifest.refused[0]
    ban.write_text("{")
    with pytest.raises(PermanentError, match="what the watch has left cannot be read"):
        next(archiver(site).source.sound())


def test_a_step_without_shards_is_none_and_no_step_at_all_is_an_error(site: Any) -> None:
    with pytest.raises(PermanentError, match="no sound checkpoint"):
        archiver(site).run()
    folder = commit(site, 30).parent.parent
    seal(folder, manifest_of(30, (), campaign=CAMPAIGN, identity=IDENTITY))
    with pytest.raises(PermanentError, match="it names no shards"):
        archiver(site).run()
    commit(site, 40).unlink()
    with pytest.raises(PermanentError, match=r"a\.pt is missing or has another size"):
        archiver(site).run()


def test_a_newer_step_that_the_record_or_the_tier_knows_forbids_an_older_archive(site: Any) -> None:
    commit(site, 30)
    with pytest.raises(PermanentError, match="is not on the shared tier"):
        archiver(site, committed=31).run()
    archiver(site, committed=30).run()
    with pytest.raises(PermanentError, match="older than its newest checkpoint"):
        archiver(site, committed=31).run()
    commit(site, 32)
    commit(site, 35)
    with pytest.raises(PermanentError, match="newest committed step: 35"):
        archiver(site).run()


def test_whoever_publishes_first_has_the_archive_if_it_is_sound_and_not_older(site: Any) -> None:
    commit(site, 30)
    first = archiver(site).run()
    site.s3.calls.clear()
    ours = first.model_copy(update={"tokens": 1})
    assert archiver(site)._publish(ours) == first
    assert len([call for call in site.s3.calls if call.startswith("get ")]) == 1 + len(first.objects)
    commit(site, 40)
    with pytest.raises(PermanentError, match="older than its newest checkpoint"):
        archiver(site)._publish(ours)


def test_uploads_of_killed_tries_end_with_the_archive_and_do_not_spoil_it(site: Any) -> None:
    commit(site, 30)
    site.s3.uploads["killed"] = {"key": f"{PREFIX}/golden/x", "metadata": {}, "parts": {}}
    archiver(site).run()
    assert not site.s3.uploads
    site.s3.uploads["killed"] = {"key": f"{PREFIX}/x", "metadata": {}, "parts": {}, "ended": "AccessDenied"}
    archiver(site).run()


def test_a_disk_without_room_is_told_before_anything_is_sent(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    size = commit(site, 30).stat().st_size
    free: Callable[[int], None] = lambda left: monkeypatch.setattr(  # noqa: E731
        archive.shutil, "disk_usage", lambda _: SimpleNamespace(free=left)
    )
    free(size - 1)
    with pytest.raises(PermanentError, match="has no room"):
        archiver(site).run()
    assert not any(call.startswith("put") for call in site.s3.calls)
    free(size)
    archiver(site).run()


def test_weights_need_their_room_twice_once_as_they_come_back_and_once_for_the_export(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = commit(site, 30)
    weights = other.with_name("mp_rank_00_model_states.pt")
    weights.write_bytes(BODY * 3)
    seal(
        other.parent.parent,
        manifest_of(
            30, (shard_at(other), shard_at(weights)), campaign=CAMPAIGN, identity=IDENTITY, evaluation_loss=2.25
        ),
    )
    needed = len(BODY) + 2 + 2 * 3 * len(BODY)
    namespace = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(archive.shutil, "disk_usage", lambda _: namespace)
    with pytest.raises(PermanentError, match="has no room"):
        archiver(site).run()
    namespace.free = needed
    kept = {item.key.rpartition("/")[2] for item in archiver(site).run().objects}
    assert {"a.pt", "mp_rank_00_model_states.pt", "manifest.json"} <= kept


def test_room_is_told_in_mebibytes(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = manifest_of(30, (Shard(file="attempt-0001/a.pt", size_bytes=7 * MIB // 2, sha256="0" * 64, rank=0),))
    monkeypatch.setattr(archive.shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * MIB // 2))
    with pytest.raises(PermanentError, match=r"work: 3\.5 MiB needed, 1\.5 MiB free"):
        archiver(site)._check_room(golden)


def test_every_shard_is_looked_at_and_a_step_is_refused_by_the_first_that_is_wrong(site: Any) -> None:
    commit(site, 20)
    first = commit(site, 30)
    second, third = first.with_name("b.pt"), first.with_name("c.pt")
    for shard in (second, third):
        shard.write_bytes(BODY)
    shards = tuple(map(shard_at, (first, second, third)))
    seal(first.parent.parent, manifest_of(30, shards, campaign=CAMPAIGN, identity=IDENTITY))
    third.unlink()
    assert archiver(site).run().refused == (f"{step_folder(30)}: attempt-0001/c.pt is missing or has another size",)


def test_newer_steps_that_an_archive_refused_by_name_are_no_objection_and_others_are(site: Any) -> None:
    commit(site, 20)
    for step in (30, 40):
        commit(site, step).unlink()
    first = archiver(site, committed=40).run()
    assert archiver(site, committed=40).run() == first, "newer steps are named in it"
    commit(site, 35)
    with pytest.raises(PermanentError) as told:
        archiver(site, committed=40).run()
    assert told.value.seen == f"s3://b/{PREFIX}/archive-manifest.json is of step 20, newest committed step: 35"
    assert "`bivouac checkpoints restore tiny FOLDER --tier shared` copies" in str(told.value.cure)


def test_why_a_step_is_refused_is_kept_in_two_hundred_letters_and_said_in_five_hundred(
    site: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source = archiver(site).source
    source.refuse(source.root / "step-00000030", "x" * 600)
    assert source.refused == [f"step-00000030: {'x' * 185}"]
    document = json.loads(capsys.readouterr().out)
    document.pop("time")
    assert document == {"event": "refused", "tier": "shared", "folder": "step-00000030", "why": "x" * 500}


def test_another_step_that_is_refused_is_no_word_on_the_newest_committed_one(site: Any) -> None:
    commit(site, 20)
    commit(site, 32).unlink()
    with pytest.raises(PermanentError, match="is not on the shared tier") as told:
        archiver(site, committed=31).run()
    where = site.root / "shared" / CAMPAIGN
    assert told.value.seen == f"step 31 by the record, newest sound one in {where}: step 20"


def test_a_shard_that_changed_refuses_its_step_and_another_file_ends_the_archive(site: Any) -> None:
    path, content = a_file(site.root, BODY)
    path.write_bytes(BODY.upper())
    with pytest.raises(archive.SourceLost):
        archiver(site)._place(f"golden/{step_folder(30)}/a.pt", content)
    with pytest.raises(PermanentError, match="changed or went"):
        archiver(site)._place("train.json", content)


@pytest.mark.parametrize("name", ["record/live.json", "huggingface/README.md", "train.json"])
def test_a_record_that_moved_on_stands_as_it_was_first_placed(site: Any, name: str) -> None:
    first = archiver(site)._place(name, Content.of(BODY))
    if name == "train.json":
        with pytest.raises(PermanentError):
            archiver(site)._place(name, Content.of(BODY.upper()))
    else:
        assert archiver(site)._place(name, Content.of(BODY.upper())) == first


def test_each_shard_of_a_step_that_does_not_evaluate_is_compared_with_its_digest(site: Any) -> None:
    commit(site, 20)
    first = commit(site, 30, loss=None)
    second = first.with_name("b.pt")
    second.write_bytes(BODY)
    shards = (shard_at(first), shard_at(second))
    seal(first.parent.parent, manifest_of(30, shards, campaign=CAMPAIGN, identity=IDENTITY))
    second.write_bytes(BODY.upper())
    manifest = archiver(site, here=PermanentError("torch says no", seen="", cure="")).run()
    assert manifest.refused == (f"{step_folder(30)}: attempt-0001/b.pt does not have its digest",)
    with pytest.raises(ValueError, match="no number"):
        archiver(site, here=ValueError("no number"))._evaluated_here(
            first.parent.parent, manifest_of(30, shards, campaign=CAMPAIGN, identity=IDENTITY)
        )


def test_the_model_card_has_the_records_owner_and_cost_and_no_earlier_export(site: Any) -> None:
    commit(site, 30)
    site.s3.held[f"campaigns/{CAMPAIGN}/spec.json"] = (b'{"owner": "ann"}', {})
    site.s3.held[f"campaigns/{CAMPAIGN}/live.json"] = (b'{"spent_usd": 12.5}', {})
    left = site.root / "work/huggingface"
    left.mkdir()
    (left / "stale").write_bytes(BODY)
    archiver(site).run()
    card = site.s3.held[f"{PREFIX}/huggingface/README.md"][0].decode()
    assert "| ann |" in card and "12.50 USD" in card
    assert f"{PREFIX}/huggingface/stale" not in site.s3.held


def test_after_a_failure_nothing_more_is_begun_and_its_error_is_raised_as_it_is(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(site, 20)
    commit(site, 30)
    placed: list[str] = []
    event = threading.Event()

    def place(name: str, content: Content, first_stays: bool = False) -> None:
        placed.append(name)
        if len(placed) > 1:
            event.wait()
        raise HTTPClientError(error="cut off")

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            event.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr("infra.archive.bucket.ThreadPoolExecutor", lambda _: Pool(1))
    one = archiver(site)
    one.bucket = SimpleNamespace(get=site.bucket.get, place=place)
    with pytest.raises(HTTPClientError, match="cut off"):
        one.run()
    # The pool's one thread may take a second before the first one's error is seen.
    assert 1 <= len(placed) <= 2 and placed[0].startswith(f"golden/{step_folder(30)}/") and not one.source.refused


def test_a_mistake_of_ours_in_aborting_uploads_is_raised(site: Any) -> None:
    one = archiver(site)
    one.bucket = SimpleNamespace(abort_uploads=lambda: dict[str, int]()["mine"])
    with pytest.raises(KeyError, match="mine"):
        one._abort_uploads()


def test_what_is_said_leaves_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(raw := io.BytesIO(), write_through=False)
    monkeypatch.setattr(archive.sys, "stdout", out)
    archive.say("golden", step=30)
    assert json.loads(raw.getvalue())["step"] == 30
