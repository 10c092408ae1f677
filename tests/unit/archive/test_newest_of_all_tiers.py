"""The archive takes the newest sound step of the shared tier and of the copies in S3; no removal loses a newer one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.archive.bucket import forget_copies
from infra.archive.from_s3 import AllTiers, BucketSource, source_of
from infra.archive.settings import Places
from infra.errors import PermanentError
from tests.unit.archive.archive_story import BODY, CAMPAIGN, IDENTITY, archiver, commit, refused, site_at
from trainer.contract import attempt_folder, step_folder

COPIES = f"copies/{CAMPAIGN}/{IDENTITY}"
STEPS = (10, 20, 30, 40)
ON_SHARED = st.sampled_from(["none", "sound", "altered", "short", "gone", "no manifest", "bad manifest"])
IN_S3 = st.sampled_from(["none", "sound", "altered", "short", "gone", "no manifest", "bad manifest"])


@pytest.fixture(autouse=True, scope="module")
def _no_pauses() -> Iterator[None]:
    """A damaged copy is read five times, with seconds between: S3's answers may be wrong for a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infra.archive.bucket.time.sleep", lambda _: None)
        yield


def lay_down(site: Any, step: int, shared: str, copy: str) -> None:
    """Commit a step on both tiers, then do to each what is told."""
    shard = commit(site, step, loss=None)
    folder = shard.parents[1]
    names = {f"{attempt_folder(1)}/a.pt": shard, "manifest.json": folder / "manifest.json"}
    held = {f"{COPIES}/{step_folder(step)}/{name}": path.read_bytes() for name, path in names.items()}
    key, manifest = held
    match copy:
        case "none":
            held = {}
        case "altered":
            held[key] = held[key][::-1]
        case "short":
            held[key] = held[key][1:]
        case "gone":
            del held[key]
        case "no manifest":
            del held[manifest]
        case "bad manifest":
            held[manifest] = b"{"
    site.s3.held |= {name: (body, {}) for name, body in held.items()}
    match shared:
        case "none":
            shutil.rmtree(folder)
        case "altered":
            shard.write_bytes(shard.read_bytes()[::-1])
        case "short":
            shard.write_bytes(shard.read_bytes()[1:])
        case "gone":
            shard.unlink()
        case "no manifest":
            names["manifest.json"].unlink()
        case "bad manifest":
            names["manifest.json"].write_bytes(b"{")


@settings(max_examples=60, deadline=None)
@given(tiers=st.lists(st.tuples(ON_SHARED, IN_S3), min_size=len(STEPS), max_size=len(STEPS)))
def test_the_newest_sound_step_of_all_tiers_is_archived_and_no_newer_copy_is_removed(
    tiers: list[tuple[str, str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        site = site_at(Path(folder))
        for step, (shared, copy) in zip(STEPS, tiers, strict=True):
            lay_down(site, step, shared, copy)
        sound = [step for step, where in zip(STEPS, tiers, strict=True) if "sound" in where]
        there = {key: body for key, body in site.s3.held.items() if key.startswith(COPIES)}
        if not sound:
            with pytest.raises(PermanentError):
                archiver(site).run()
            assert {key: body for key, body in site.s3.held.items() if key.startswith(COPIES)} == there
            return
        manifest = archiver(site).run()
        assert manifest.step == max(sound)
        golden = next(item.key for item in manifest.objects if item.key.endswith("a.pt"))
        assert site.s3.held[golden][0] == BODY + b"%d" % max(sound)
        site.s3._list_object_versions = _versions(site.s3)
        forget_copies(site.s3, "b", COPIES, site.bucket.say, manifest.step)
        bodies = {key: body for key, body in site.s3.held.items() if key.startswith(COPIES)}
        assert bodies == {key: body for key, body in there.items() if _step(key) > max(sound)}


def _versions(s3: Any) -> Any:
    def listed(Prefix: str, **_: Any) -> list[dict[str, Any]]:
        keys = [key for key in sorted(s3.held) if key.startswith(Prefix)]
        return [{"Versions": [{"Key": key, "VersionId": "v", "IsLatest": True}]} for key in keys]

    return listed


def _step(key: str) -> int:
    return int(key.removeprefix(f"{COPIES}/step-").partition("/")[0])


@pytest.fixture
def site(tmp_path: Path) -> Any:
    return site_at(tmp_path)


def test_a_step_that_is_damaged_on_the_file_system_is_archived_from_its_copy(site: Any) -> None:
    lay_down(site, 20, "sound", "none")
    lay_down(site, 30, "altered", "sound")
    manifest = archiver(site, committed=30).run()
    assert (manifest.step, manifest.refused) == (30, ())


def test_a_step_that_the_watch_distrusts_is_not_taken_from_its_copy_either(site: Any) -> None:
    lay_down(site, 20, "sound", "none")
    lay_down(site, 30, "none", "sound")
    notes = site.root / "shared" / CAMPAIGN / "watch"
    notes.mkdir()
    (notes / "ban-0001-00000025.json").write_text('{"attempt": 1, "first": 25, "last": 30, "why": "the loss rose"}')
    assert archiver(site).run().step == 20


def test_copies_that_nobody_may_list_are_not_none(site: Any) -> None:
    """An older step would be archived, and what lies there would be taken for nothing."""
    lay_down(site, 20, "sound", "none")

    def refuse(Prefix: str, **_: Any) -> Any:
        raise PermissionError("AccessDenied")

    site.s3._list_objects_v2 = refuse
    with pytest.raises(PermissionError):
        archiver(site).run()


def test_of_a_step_that_both_have_the_file_system_s_is_taken_and_nothing_is_brought(site: Any) -> None:
    lay_down(site, 30, "sound", "sound")
    assert archiver(site).run().step == 30
    assert not any(call.startswith(f"get {COPIES}/") for call in site.s3.calls)


def test_a_refused_copy_is_told_and_no_brought_step_is_left_behind(site: Any) -> None:
    lay_down(site, 20, "none", "sound")
    lay_down(site, 30, "none", "altered")
    manifest = archiver(site).run()
    assert manifest.step == 20 and [row.partition(":")[0] for row in manifest.refused] == ["step-00000030"]
    assert "its copy in S3" in manifest.refused[0]
    assert not [path for path in (site.root / "work").rglob("step-*") if step_folder(30) in str(path)]


def test_a_copy_that_may_not_be_read_is_not_passed_over(site: Any) -> None:
    lay_down(site, 20, "sound", "none")
    lay_down(site, 30, "none", "sound")
    get = site.s3.get_object

    def refuse(Key: str, **rest: Any) -> Any:
        if Key.startswith(COPIES):
            raise refused("AccessDenied", 403)
        return get(Key=Key, **rest)

    site.s3.get_object = refuse
    with pytest.raises(ClientError):
        archiver(site).run()


def test_an_archive_that_is_older_than_a_copy_is_not_taken_for_the_newest(site: Any) -> None:
    lay_down(site, 20, "sound", "none")
    assert archiver(site).run().step == 20
    lay_down(site, 30, "none", "sound")
    with pytest.raises(PermanentError, match="newest committed step: 30"):
        archiver(site).run()


def test_without_a_shared_file_system_the_bucket_is_all_there_is(site: Any) -> None:
    config = archiver(site).config
    for url, kind in (("", AllTiers), ("s3://b/c", BucketSource)):
        config = config.model_copy(update={"shared_tier": url})
        source = source_of(config, site.s3, Places(shared=site.root / "shared"), site.root / "work", site.bucket.say)
        assert type(source) is kind and source.root == site.root / "shared" / CAMPAIGN
