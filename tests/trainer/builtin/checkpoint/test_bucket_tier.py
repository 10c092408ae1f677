"""The shared tier in S3: what is committed there, what is refused, and what is left by a node that dies on the way."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import waiting
from tests.drills.parts.storage_gang import CAMPAIGN, Camp, Orders, run_attempt
from tests.manifests import manifest_of, shard_at
from tests.trainer.emulated_s3 import BUCKET
from tests.trainer.emulated_s3 import s3 as s3
from trainer.buckets import prefix
from trainer.buckets.prefix import Prefix
from trainer.builtin.checkpoint.bucket import BucketTier
from trainer.builtin.checkpoint.fence import check_fence, claim, losses, lost_nothing, newest_attempt
from trainer.builtin.checkpoint.tiers import AnyTiers, tiers_in_s3
from trainer.builtin.watch.overseer import read_bans, write_ban
from trainer.contract import Manifest
from trainer.contract.checkpoint import Ban
from trainer.errors import Fenced, StorageError

_numbers = itertools.count()
WHOLE = "step-00000040/attempt-0002/mp_rank_00_model_states.pt"


@dataclass(frozen=True)
class BucketCamp(Camp):
    """One shared tier in S3."""

    url: str = ""

    def tiers(self, rank: int) -> AnyTiers:  # type: ignore[override]
        return tiers_in_s3(self.root / f"local-{rank // self.ranks_per_node}", self.url, CAMPAIGN)

    @property
    def shared(self) -> BucketTier:
        return BucketTier(self.url, CAMPAIGN)

    def lose_node(self, node: int) -> None:
        shutil.rmtree(self.root / f"local-{node}")

    def lose_all(self) -> None:
        for node in range(self.ranks // self.ranks_per_node):
            self.lose_node(node)

    def restored(self, attempt: int) -> list[tuple[int, bool]]:
        return [(event["step"], event["sound"]) for event in self.events(attempt, "restored")]

    def downloaded(self, attempt: int) -> set[str]:
        return {event["file"].rpartition("/")[2] for event in self.events(attempt, "downloaded_shard")}


@pytest.fixture
def url(s3: Any) -> str:
    return f"s3://{BUCKET}/copies/{CAMPAIGN}/{next(_numbers)}"


@pytest.fixture(scope="module")
def trained(s3: Any, tmp_path_factory: pytest.TempPathFactory) -> BucketCamp:
    """Two nodes of one rank each; steps 10, 20 and 30 were committed, and two of them are kept."""
    camp = BucketCamp(tmp_path_factory.mktemp("trained"), 2, 1, f"s3://{BUCKET}/copies/{CAMPAIGN}/trained")
    assert run_attempt(camp, Orders(1, (10, 20, 30))) == [0, 0], camp.log(0, 1).read_text()
    return camp


@pytest.fixture
def camp(trained: BucketCamp, s3: Any, url: str, tmp_path: Path) -> BucketCamp:
    """A copy of it."""
    camp = BucketCamp(tmp_path / "camp", 2, 1, url)
    shutil.copytree(trained.root, camp.root)
    for name in keys(s3, trained.url):
        source, target = (f"{one.removeprefix(f's3://{BUCKET}/')}/{name}" for one in (trained.url, url))
        s3.copy_object(Bucket=BUCKET, Key=target, CopySource={"Bucket": BUCKET, "Key": source})
    return camp


def keys(s3: Any, url: str, versions: bool = False) -> list[str]:
    folder = url.removeprefix(f"s3://{BUCKET}/")
    if versions:
        answer = s3.list_object_versions(Bucket=BUCKET, Prefix=f"{folder}/")
        rows = [*answer.get("Versions", ()), *answer.get("DeleteMarkers", ())]
    else:
        rows = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{folder}/").get("Contents", ())
    return sorted(row["Key"].removeprefix(f"{folder}/") for row in rows)


def steps(tier: BucketTier) -> list[int]:
    return [manifest.step for manifest in tier.committed()]


def key_of(url: str, manifest: Manifest, rank: int) -> str:
    """The key of a rank's own shard of optimizer states."""
    shard = next(s for s in manifest.shards if s.rank == rank and "optim" in s.file)
    return f"{url.removeprefix(f's3://{BUCKET}/')}/step-{manifest.step:08d}/{shard.file}"


def test_committed_steps_lie_in_s3_and_old_ones_go_with_all_their_versions(trained: BucketCamp, s3: Any) -> None:
    camp = trained
    assert steps(camp.shared) == [30, 20]
    newest = camp.shared.committed()[0]
    named = {f"step-00000030/{name}" for name in (*(s.file for s in newest.shards), "manifest.json")}
    there = set(keys(s3, camp.url))
    assert {name for name in there if name.startswith("step-00000030")} == named
    assert not [name for name in keys(s3, camp.url, versions=True) if name.startswith("step-00000010")]


def test_with_a_node_lost_its_shards_come_from_s3_and_the_others_from_their_own_disk(camp: BucketCamp) -> None:
    camp.lose_node(1)
    assert run_attempt(camp, Orders(2)) == [0, 0]
    assert camp.restored(2) == [(30, True), (30, True)]
    assert camp.downloaded(2) == {
        "mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rng_rank_00001.pt"
    }  # fmt: skip


def test_with_every_node_lost_the_campaign_goes_on_from_s3(camp: BucketCamp) -> None:
    camp.lose_all()
    assert run_attempt(camp, Orders(2, (40,))) == [0, 0]
    assert camp.restored(2) == [(30, True), (30, True)] and steps(camp.shared) == [40, 30]


@pytest.mark.parametrize(("harm", "event"), [("damaged", "refused_shard"), ("missing", "missing_shard")])
def test_a_damaged_or_missing_shard_refuses_its_step_on_all_ranks_for_the_one_before(
    harm: str, event: str, camp: BucketCamp, s3: Any
) -> None:
    key = key_of(camp.url, camp.shared.committed()[0], rank=1)
    if harm == "missing":
        s3.delete_object(Bucket=BUCKET, Key=key)
    else:
        content = bytearray(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        content[len(content) // 2] ^= 1
        s3.put_object(Bucket=BUCKET, Key=key, Body=bytes(content))
    camp.lose_all()

    assert run_attempt(camp, Orders(2)) == [0, 0]

    assert camp.restored(2) == [(20, True), (20, True)]
    told = [e for e in camp.events(2, event) if e["tier"] == "shared" and e["rank"] == 1 and e["step"] == 30]
    assert [key.endswith(e["file"]) for e in told] == [True]


def test_a_damaged_manifest_refuses_its_step(camp: BucketCamp, s3: Any) -> None:
    name = f"{camp.url.removeprefix(f's3://{BUCKET}/')}/step-00000030/manifest.json"
    content = s3.get_object(Bucket=BUCKET, Key=name)["Body"].read()
    half = len(content) // 2
    s3.put_object(Bucket=BUCKET, Key=name, Body=content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :])
    camp.lose_all()
    assert run_attempt(camp, Orders(2)) == [0, 0]
    assert camp.restored(2) == [(20, True), (20, True)]


def test_with_nothing_sound_left_the_attempt_ends_and_does_not_begin_anew(camp: BucketCamp, s3: Any) -> None:
    for manifest in camp.shared.committed():
        s3.delete_object(Bucket=BUCKET, Key=key_of(camp.url, manifest, rank=0))
    camp.lose_all()
    assert run_attempt(camp, Orders(2)) == [74, 74]
    (why,) = {event["reason"] for event in camp.events(2, "ended")}
    assert why == "nothing-sound" and not camp.restored(2)


def test_a_node_that_dies_during_an_upload_leaves_the_checkpoint_before_the_newest(camp: BucketCamp, s3: Any) -> None:
    def dies_on_the_way(rank: int) -> None:
        def begin_and_die(self: Prefix, name: str, source: Path) -> None:
            at = self._address(name)
            # The other rank's file lies there first: a lost peer may end it in the middle of its own upload.
            waiting.until(lambda: WHOLE in keys(self._s3, camp.url), "the other rank's file")
            upload_id = self._s3.create_multipart_upload(**at)["UploadId"]
            self._s3.upload_part(**at, UploadId=upload_id, PartNumber=1, Body=source.read_bytes()[:100])
            os.kill(os.getpid(), signal.SIGKILL)

        if rank == 1:
            vars(prefix)["Prefix"].upload = begin_and_die

    codes = run_attempt(camp, Orders(2, (40,), sabotage=dies_on_the_way))
    assert codes[1] == -9 and codes[0] != 0
    assert steps(camp.shared) == [30, 20]
    assert WHOLE in keys(s3, camp.url)
    folder = camp.url.removeprefix(f"s3://{BUCKET}/")
    assert s3.list_multipart_uploads(Bucket=BUCKET, Prefix=folder)["Uploads"]
    camp.lose_node(1)

    assert run_attempt(camp, Orders(3, (40,))) == [0, 0]

    assert camp.restored(3) == [(30, True), (30, True)] and steps(camp.shared) == [40, 30]
    assert not s3.list_multipart_uploads(Bucket=BUCKET, Prefix=folder).get("Uploads")
    names = [name for name in keys(s3, camp.url, versions=True) if name.startswith("step-00000040/attempt-")]
    assert names and all(name.startswith("step-00000040/attempt-0003/") for name in names)


def test_a_shard_that_changed_on_its_way_is_not_published(camp: BucketCamp) -> None:
    def flips(rank: int) -> None:
        real = Prefix.upload

        def spoil(self: Prefix, name: str, source: Path) -> None:
            content = bytearray(source.read_bytes())
            content[-1] ^= 1
            (other := source.with_name("spoilt")).write_bytes(content)
            real(self, name, other)

        if rank == 0:
            vars(prefix)["Prefix"].upload = spoil

    codes = run_attempt(camp, Orders(2, (40,), sabotage=flips))
    assert codes[0] == 74 and steps(camp.shared) == [30, 20]


def test_a_stale_attempt_neither_replaces_nor_drops_what_a_newer_one_has_made(url: str, tmp_path: Path) -> None:
    tier = BucketTier(url, "tiny")
    file = tmp_path / "attempt-0002/a.pt"
    file.parent.mkdir()
    file.write_bytes(b"theirs")
    theirs = manifest_of(10, (shard_at(file),), attempt=2)
    tier.take(10, theirs.shards[0], file, None)
    tier.publish(theirs, 2)
    with pytest.raises(Fenced, match="attempt 2"):
        tier.publish(manifest_of(10, attempt=1), attempt=1)
    assert not tier.drop(10, attempt=1) and [m.attempt for m in tier.committed()] == [2]
    assert tier.holds(theirs, theirs.shards)
    tier.publish(manifest_of(10, attempt=3), attempt=3)
    assert [m.attempt for m in tier.committed()] == [3]
    tier.drop_other_attempts(manifest_of(10, attempt=3))
    assert not tier.holds(theirs, theirs.shards) and tier.holds(manifest_of(10, attempt=3), ())


def test_the_fence_holds_back_older_attempts(url: str) -> None:
    tier = BucketTier(url, "tiny")
    assert newest_attempt(tier.marks) == -1
    claim(tier, 3)
    claim(tier, 3)
    assert newest_attempt(tier.marks) == 3
    claim(tier, 5)
    with pytest.raises(Fenced, match="fence at 5"):
        check_fence(tier.marks, 4)
    with pytest.raises(Fenced):
        claim(tier, 4)
    claim(tier, 5, generation=1)
    lost_nothing(tier.marks, 3)
    assert newest_attempt(tier.marks) == 5 and losses(tier.marks)[0] == 1
    assert sorted(tier.times()) == [
        "attempt-0003",
        "attempt-0003-lost-nothing",
        "attempt-0005",
        "attempt-0005-generation-1",
    ]


def test_what_an_attempt_leaves_for_later_ones_is_no_step(url: str) -> None:
    tier = BucketTier(url, "tiny")
    assert read_bans(tier) == ()
    for first in (7, 9):
        write_ban(tier, Ban(1, first, first, "why"))
    write_ban(tier, Ban(1, 7, 7, "a second time"))
    assert [(ban.first, ban.why) for ban in read_bans(BucketTier(url, "tiny"))] == [(7, "why"), (9, "why")]
    assert tier.steps() == []


def test_the_checkpoints_of_another_campaign_of_this_name_are_left_alone(url: str) -> None:
    first, second = (BucketTier(url, "tiny", identity) for identity in ("first", "second"))
    first.publish(manifest_of(10, identity="first"), 1)
    (claimed,) = second.claims()
    assert claimed.foreign and claimed.manifest is None
    second.publish(manifest_of(20, identity="second"), 1)
    second.retain(1, 20, (), 1, -1)
    assert steps(first) == [10] and steps(second) == [20]


def test_an_object_shorter_than_its_shard_is_refused(url: str, tmp_path: Path) -> None:
    file = tmp_path / "attempt-0001/a.pt"
    file.parent.mkdir()
    file.write_bytes(b"0123456789")
    tier, whole = BucketTier(url, "tiny"), shard_at(file)
    file.write_bytes(b"01234")
    tier.prefix.upload(f"step-00000010/{whole.file}", file)
    with pytest.raises((OSError, StorageError)):
        tier.fetch(10, whole, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    assert tier.fetch(10, shard_at(file), tmp_path / "fetched") == 5


def test_frozen_weights_are_uploaded_once_and_s3_copies_them_where_its_object_is_sound(
    url: str, tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, uploads, upload = BucketTier(url, "tiny"), list[str](), Prefix.upload

    def note(self: Prefix, name: str, source: Path) -> None:
        uploads.append(name[:13])
        upload(self, name, source)

    monkeypatch.setattr(Prefix, "upload", note)
    (tmp_path / "attempt-0001").mkdir()
    (file := tmp_path / "attempt-0001/frozen_mp_rank_00.pt").write_bytes(os.urandom(9 * 2**20))
    shard, newest = shard_at(file), None
    for step in (10, 20, 30, 40):
        if step == 40:
            at = f"{url.removeprefix(f's3://{BUCKET}/')}/step-00000030/{shard.file}"
            s3.put_object(Bucket=BUCKET, Key=at, Body=b"damaged")
        tier.take(step, shard, file, newest)
        newest = manifest_of(step, (shard,))
        tier.publish(newest, 1)
    assert uploads == ["step-00000010", "step-00000040"]
    (target := tmp_path / "back").mkdir()
    assert tier.fetch(20, shard, target / "base.pt") == tier.fetch(40, shard, target / "again.pt") == 9 * 2**20
