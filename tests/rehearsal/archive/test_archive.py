"""The archive against an emulated S3 in this process: what proves it, and what travels again after it was cut off."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import HTTPClientError

from infra.archive import archive
from infra.archive.bucket import ArchiveBucket, ArchivedObject, Clash, Content
from infra.archive.manifest import MANIFEST_NAME, RECORD, EvaluationProof
from infra.archive.model_card import model_card
from infra.aws.parts import Altered, PartTransfers
from infra.aws.transfer import MIB, Transfer
from infra.errors import PermanentError
from infra.rehearsal.aws.world import World
from infra.tables import table
from tests.manifests import manifest_of, seal, shard_at
from trainer.contract import Manifest, attempt_folder, step_folder

CAMPAIGN, STEP, PART = "tiny", 30, 5 * MIB
IDENTITY = "20261101T000000Z-0a1b2c3d"
PREFIX = f"campaigns/{CAMPAIGN}"


class Wire(PartTransfers):
    """Counts requests; the `cut`-th and later ones are lost on the way."""

    def __init__(self, s3: Any) -> None:
        super().__init__(s3)
        self.sent: list[int] = []
        self.got: list[int] = []
        self.cut: int | None = None

    def put(self, where: dict[str, Any], headers: dict[str, str], body: Any, size: int) -> Future[dict[str, str]]:
        if self.cut is not None and len(self.sent) >= self.cut:
            future: Future[dict[str, str]] = Future()
            future.set_exception(HTTPClientError(error="cut off"))
            return future
        self.sent.append(where["PartNumber"])
        return super().put(where, headers, body, size)

    def get(self, where: dict[str, Any], start: int, into: memoryview, of: int) -> Future[int]:
        self.got.append(start)
        return super().get(where, start, into, of)


@pytest.fixture
def site(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> SimpleNamespace:
    key, secret = world.operator_key
    session = boto3.Session(key, secret, region_name=world.region)
    s3 = session.client("s3", endpoint_url=world.endpoint_url, config=Config(signature_version="s3v4"))
    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    for each in (f"archive-{name}", f"state-{name}"):
        s3.create_bucket(Bucket=each)
    for record in ("spec.json", "live.json"):
        s3.put_object(Bucket=f"state-{name}", Key=f"{PREFIX}/{record}", Body=b'{"spent_usd": 12.5, "owner": "ann"}')
    wire, said = Wire(s3), list[dict[str, Any]]()
    bucket = ArchiveBucket(
        s3,
        f"archive-{name}",
        PREFIX,
        lambda event, **fields: said.append({"event": event, **fields}),
        tries=2,
        pause=timedelta(milliseconds=1),
        transfer=Transfer(s3, f"archive-{name}", PART, 4, wire),
    )
    data = tmp_path / "data"
    data.mkdir()
    shard = b"held out" * 10
    (data / "validation-00000.bin").write_bytes(shard)
    (data / "tokenizer.json").write_text("{}")
    held = {"file": "validation-00000.bin", "sha256": hashlib.sha256(shard).hexdigest()}
    (data / "manifest.json").write_text(json.dumps({"validation": [held], "unigram_loss": 6.2}))
    (tmp_path / "train.json").write_text("{}")
    (tmp_path / "work").mkdir()
    return SimpleNamespace(s3=s3, bucket=bucket, wire=wire, said=said, root=tmp_path, data=data, state=f"state-{name}")


def commit(
    site: SimpleNamespace, loss: float | None, size: int = PART * 2 + 77, step: int = STEP, identity: str = IDENTITY
) -> Path:
    """A committed checkpoint of one large and one small shard on the shared tier."""
    folder = site.root / "shared" / CAMPAIGN / step_folder(step)
    shards = []
    for name, body in (("large.pt", bytes(range(256)) * (size // 256 + 1)), ("small.pt", b"small" * 99)):
        path = folder / attempt_folder(1) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body[:size])
        shards.append(shard_at(path))
    manifest = manifest_of(step, tuple(shards), campaign=CAMPAIGN, identity=identity, loss=2.5, evaluation_loss=loss)
    seal(folder, manifest)
    return folder


def archiver(site: SimpleNamespace, losses: dict[str, float], committed: int = -1) -> archive.Archiver:
    """`losses`: what the model evaluates to on the shared tier, and out of what was read back."""

    def evaluate(checkpoint: Path, out: Path | None) -> float:
        if out is not None:
            out.mkdir()
            (out / "model.safetensors").write_bytes((checkpoint / "attempt-0001/small.pt").read_bytes())
        return losses["work" if (site.root / "work") in checkpoint.parents else "shared"]

    config = archive.ArchiveConfig(
        campaign=CAMPAIGN,
        identity=IDENTITY,
        committed_step=committed,
        region="us-east-1",
        state_bucket=site.state,
        archive_bucket=site.bucket.bucket,
        image_manifest="images/none.json",
    )
    places = archive.Places(site.root / "shared", site.root / "train.json", site.data)
    return archive.Archiver(config, site.bucket, site.root / "work", places, archive.Model(evaluate))


def test_a_recorded_loss_proves_the_archive_without_another_evaluation(site: SimpleNamespace) -> None:
    commit(site, loss=2.25)
    manifest = archiver(site, {"work": 2.25}).run()
    assert (manifest.proof, manifest.reference_evaluation_loss) == (EvaluationProof.RECORDED, 2.25)
    names = {item.key.removeprefix(f"{PREFIX}/") for item in manifest.objects}
    assert {"data/tokenizer.json", "data/validation-00000.bin", "huggingface/model.safetensors"} <= names
    card = site.s3.get_object(Bucket=site.bucket.bucket, Key=f"{PREFIX}/huggingface/README.md")["Body"].read().decode()
    assert "12.50 USD" in card and "| trained by | ann |" in card and "2.25 nats" in card


def test_a_model_of_an_emulated_world_says_so_in_its_card(site: SimpleNamespace) -> None:
    golden = Manifest.model_validate_json((commit(site, loss=2.25) / "manifest.json").read_bytes())
    records = {f"{RECORD}/spec.json": b'{"owner": "ann"}'}
    assert "rehearsal" not in model_card(golden, 2.25, {}, records)
    emulated = {**records, f"{RECORD}/site.json": json.dumps(table("infra.rehearsal.site", "honesty")).encode()}
    assert "on one machine without GPU: a rehearsal" in model_card(golden, 2.25, {}, emulated)


def test_a_step_without_a_recorded_loss_is_evaluated_before_the_upload(site: SimpleNamespace) -> None:
    commit(site, loss=None)
    manifest = archiver(site, {"shared": 2.5, "work": 2.5}).run()
    assert manifest.proof is EvaluationProof.EVALUATED and manifest.recorded_evaluation_loss is None
    assert manifest.reference_evaluation_loss == manifest.restored_evaluation_loss == 2.5


def test_a_checkpoint_that_is_lost_on_the_way_leaves_its_room_to_an_older_one(site: SimpleNamespace) -> None:
    commit(site, loss=2.25, step=STEP - 10)
    damaged = commit(site, loss=2.25) / attempt_folder(1) / "large.pt"
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    manifest = archiver(site, {"work": 2.25}).run()
    assert manifest.step == STEP - 10 and len(manifest.refused) == 1
    assert [path.name for path in (site.root / "work" / "golden").iterdir()] == [step_folder(STEP - 10)]


@pytest.mark.parametrize("recorded", [None, 2.5])
def test_another_loss_after_the_read_back_is_no_archive(site: SimpleNamespace, recorded: float | None) -> None:
    commit(site, loss=recorded)
    with pytest.raises(PermanentError, match="does not evaluate as the one that was archived"):
        archiver(site, {"shared": 2.5, "work": 2.5000000000000004}).run()
    assert site.bucket.get(MANIFEST_NAME) is None


def test_a_cut_off_upload_goes_on_with_the_parts_that_are_missing(site: SimpleNamespace) -> None:
    path = commit(site, loss=2.0, size=PART * 5 + 11) / "attempt-0001/large.pt"
    content = Content.of_file(path)
    site.wire.cut = 3
    with pytest.raises(HTTPClientError):
        site.bucket.place("large", content)
    assert sorted(site.wire.sent) == [1, 2, 3]
    site.wire.cut = None
    item = site.bucket.place("large", content)
    assert sorted(site.wire.sent) == [1, 2, 3, 4, 5, 6], "a part was sent twice"
    assert [said["parts_already_there"] for said in site.said if said["event"] == "resumed"] == [3]
    site.bucket.read_back(item, site.root / "back")
    assert (site.root / "back").read_bytes() == path.read_bytes()


def test_parts_of_other_bytes_under_the_same_key_are_not_taken_over(site: SimpleNamespace) -> None:
    path = commit(site, loss=2.0, size=PART * 2) / "attempt-0001/large.pt"
    ours = Content.of_file(path)
    site.wire.cut = 1
    other = site.root / "other"
    other.write_bytes(b"y" * ours.size_bytes)
    with pytest.raises(HTTPClientError):
        site.bucket.place("large", Content(other, ours.size_bytes, ours.sha256))  # the claim is of our bytes
    site.wire.cut = None
    item = site.bucket.place("large", ours)
    site.bucket.read_back(item, None)


def test_bytes_that_changed_on_the_way_are_never_completed(site: SimpleNamespace) -> None:
    path = commit(site, loss=2.0) / "attempt-0001/large.pt"
    content = Content.of_file(path)
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)
    with pytest.raises(Altered):
        site.bucket.place("large", content)
    assert site.s3.list_objects_v2(Bucket=site.bucket.bucket).get("KeyCount") == 0


def test_a_longer_object_is_not_taken_for_its_beginning(site: SimpleNamespace) -> None:
    body = b"z" * (PART * 2 + 5)
    site.s3.put_object(Bucket=site.bucket.bucket, Key="k", Body=body + b"more")
    item = ArchivedObject(key="k", size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
    with pytest.raises(Exception, match="bytes, not"):
        site.bucket.read_back(item, None)


def test_more_parts_than_the_bound_are_never_in_memory(site: SimpleNamespace) -> None:
    path = commit(site, loss=2.0, size=PART * 9) / "attempt-0001/large.pt"
    running, most = [0], [0]
    start = site.wire._start

    def counted(*rest: Any, **more: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        rest[4].add_done_callback(lambda _: running.__setitem__(0, running[0] - 1))
        start(*rest, **more)

    site.wire._start = counted
    site.bucket.read_back(site.bucket.place("large", Content.of_file(path)), None)
    assert 2 <= most[0] <= 4


def lying(site: SimpleNamespace) -> dict[str, bytes]:
    """Everything in the archive bucket, by key."""
    keys = [item["Key"] for item in site.s3.list_objects_v2(Bucket=site.bucket.bucket).get("Contents", ())]
    return {key: site.s3.get_object(Bucket=site.bucket.bucket, Key=key)["Body"].read() for key in keys}


@pytest.mark.parametrize("told", [-1, 9000])
def test_an_archive_of_step_40_does_not_stand_for_what_was_trained_since(site: SimpleNamespace, told: int) -> None:
    commit(site, loss=2.25, size=999, step=40)
    assert archiver(site, {"work": 2.25}, 40).run().step == 40
    before = lying(site)
    shutil.rmtree(site.root / "shared")
    commit(site, loss=2.25, size=999, step=9000)
    with pytest.raises(PermanentError, match="older than its newest checkpoint") as refused:
        archiver(site, {"work": 2.25}, told).run()
    assert "of step 40, newest committed step: 9000" in str(refused.value) and "--tier shared" in str(refused.value)
    assert lying(site) == before


def test_a_step_of_the_record_that_is_gone_from_the_tier_is_no_archive_of_an_older_one(site: SimpleNamespace) -> None:
    commit(site, loss=2.25, size=999, step=40)
    with pytest.raises(PermanentError, match="newest committed checkpoint is not on the shared tier"):
        archiver(site, {"work": 2.25}, 50).run()
    assert not lying(site)


def test_a_newer_step_that_was_refused_by_name_lets_the_older_one_stand_each_time(
    site: SimpleNamespace,
) -> None:
    commit(site, loss=2.25, size=999, step=40)
    (commit(site, loss=2.25, size=999, step=50) / attempt_folder(1) / "small.pt").unlink()
    first = archiver(site, {"work": 2.25}, 50).run()
    assert (first.step, first.accounts_for) == (40, 50) and "step-00000050: " in first.refused[0]
    assert archiver(site, {"work": 2.25}, 50).run() == first
    with pytest.raises(PermanentError, match="older than its newest checkpoint"):
        archiver(site, {"work": 2.25}, 51).run()


def test_a_checkpoint_of_another_campaign_of_the_name_is_refused_by_name(site: SimpleNamespace) -> None:
    commit(site, loss=2.25, size=999, step=40)
    commit(site, loss=2.25, size=999, step=900, identity="20250101T000000Z-ffffffff")
    manifest = archiver(site, {"work": 2.25}, 900).run()
    assert manifest.step == 40 and manifest.identity == IDENTITY
    assert "step-00000900" in manifest.refused[0] and "20250101T000000Z-ffffffff" in manifest.refused[0]


def test_a_manifest_of_another_identity_in_the_folder_is_neither_taken_nor_replaced(site: SimpleNamespace) -> None:
    commit(site, loss=2.25, size=999)
    stranger = archiver(site, {"work": 2.25})
    stranger.config = stranger.config.model_copy(update={"identity": "another"})
    stranger.run()
    before = lying(site)
    with pytest.raises(PermanentError, match="another campaign of this name"):
        archiver(site, {"work": 2.25}).run()
    assert lying(site) == before


@pytest.mark.parametrize("size", [999, PART * 2 + 77])
def test_other_bytes_where_a_shard_belongs_are_an_error_and_stay(site: SimpleNamespace, size: int) -> None:
    folder = commit(site, loss=2.25, size=size)
    key = f"{PREFIX}/golden/{folder.name}/attempt-0001/large.pt"
    site.s3.put_object(Bucket=site.bucket.bucket, Key=key, Body=b"kept", Metadata={"sha256": "0" * 64})
    with pytest.raises(PermanentError, match="the archive has another object"):
        archiver(site, {"work": 2.25}).run()
    assert lying(site)[key] == b"kept"


def test_an_object_that_another_put_there_in_between_is_not_overwritten(
    site: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked before either wrote: S3 itself decides who was first."""
    path = commit(site, loss=2.0, size=PART + 5) / "attempt-0001/large.pt"
    for name, ours in (("large", Content.of_file(path)), ("small", Content.of(b"ours"))):
        key, looked = f"{PREFIX}/{name}", list[str]()

        def late(key: str = key, looked: list[str] = looked, **_: Any) -> None:
            if not looked:
                looked.append(key)
                site.s3.put_object(Bucket=site.bucket.bucket, Key=key, Body=b"first", Metadata={"sha256": "1" * 64})

        operations = ("PutObject", "CompleteMultipartUpload")
        tokens = [f"before-call.s3.{operation}" for operation in operations]

        def struck(params: Any = None, model: Any = None, key: str = key, late: Any = late, **_: Any) -> None:
            if params["headers"].get("If-None-Match") is not None or model.name != "PutObject":
                late(key)

        for token in tokens:
            site.s3.meta.events.register(token, struck, unique_id=name + token)
        with pytest.raises(Clash):
            site.bucket.place(name, ours)
        for token in tokens:
            site.s3.meta.events.unregister(token, unique_id=name + token)
        assert lying(site)[key] == b"first"


def test_a_record_that_moved_on_between_two_tries_stands_as_the_first_one_placed_it(site: SimpleNamespace) -> None:
    commit(site, loss=2.25, size=999)
    with pytest.raises(HTTPClientError):
        broken = archiver(site, {"work": 2.25})
        broken._publish = lambda manifest: (_ for _ in ()).throw(HTTPClientError(error="cut off"))  # type: ignore
        broken.run()
    before = lying(site)
    site.s3.put_object(Bucket=site.state, Key=f"{PREFIX}/live.json", Body=b'{"spent_usd": 99.0, "owner": "ann"}')
    manifest = archiver(site, {"work": 2.25}).run()
    after = lying(site)
    assert {key: after[key] for key in before} == before
    assert {item.key: item.sha256 for item in manifest.objects} == {
        key: hashlib.sha256(body).hexdigest() for key, body in after.items() if not key.endswith(MANIFEST_NAME)
    }
