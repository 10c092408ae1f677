"""What would be lost with a campaign's things, on hand-made listings and archives."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.inventory import LOOKS, stakes
from infra.kinds import Thing
from infra.record.events import CampaignState, Stage
from infra.record.payloads.attempts import AttemptLaunched, AttemptRecord
from infra.record.payloads.checkpoints import CheckpointUnrecognised
from infra.record.payloads.outputs import StageOutput
from infra.record.payloads.training import ArchiveVerified
from infra.spec.names import CAMPAIGN_ID_TAG, CAMPAIGN_TAG
from tests.worlds.s3 import NOON, refusal

NOBODY = SimpleNamespace()
FAR = EndpointConnectionError(endpoint_url="https://ec2")


def tagged(identity: str = "", campaign: str = "train", **more: Any) -> Thing:
    return Thing("x", tags={CAMPAIGN_TAG: campaign} | ({CAMPAIGN_ID_TAG: identity} if identity else {}), **more)


def test_what_may_hold_checkpoints_is_known_by_its_kind() -> None:
    """Written down here: what leaves this list is swept without an archive."""
    assert {"file system", "volume", "snapshot", "bucket"} == stakes.MAY_HOLD
    assert {look.name for look in LOOKS} >= stakes.MAY_HOLD, "each of them is listed"
    kept = {"file system", "volume", "snapshot", "bucket", "subnet", "VPC", "security group", "key"}
    assert not kept & stakes.NEVER_HOLD
    assert {"instance", "Auto Scaling group", "cluster", "NAT gateway", "elastic address"} <= stakes.NEVER_HOLD, (
        "what bills most is not kept for a record that is lost"
    )
    assert {look.name for look in LOOKS} >= stakes.NEVER_HOLD


def test_a_things_own_identity_counts_before_that_of_what_is_beside_it() -> None:
    beside = [tagged("id-1")]
    assert stakes.identity_of("subnet", tagged("id-2"), beside) == "id-2"
    assert stakes.identity_of("subnet", tagged(), [*beside, tagged(), tagged("id-1")]) == "id-1"
    assert stakes.identity_of("subnet", tagged(), []) == stakes.identity_of("subnet", tagged(), [tagged()]) == ""
    assert stakes.identity_of("subnet", tagged(), [*beside, tagged("id-2")]) == "", "two campaigns had the name"


@pytest.mark.parametrize("kind", ["file system", "volume", "snapshot", "bucket"])
def test_what_may_hold_checkpoints_is_nobodys_but_its_own_tags(kind: str) -> None:
    """A later campaign's archive must not free an earlier one's file system."""
    assert stakes.identity_of(kind, tagged(), [tagged("id-1")]) == ""
    assert stakes.identity_of(kind, tagged("id-2"), [tagged("id-1")]) == "id-2"


def looks(monkeypatch: pytest.MonkeyPatch, **listed: list[Thing | Exception]) -> None:
    def listing(rows: list[Thing | Exception]) -> Any:
        def each(account: Any) -> Iterator[Thing]:
            for row in rows:
                if isinstance(row, Exception):
                    raise row
                yield row

        return each

    several = [SimpleNamespace(name=kind.replace("_", " "), things=listing(rows)) for kind, rows in listed.items()]
    monkeypatch.setattr(stakes, "LOOKS", several)


@pytest.mark.parametrize("kind", ["file_system", "volume", "snapshot", "bucket"])
def test_any_of_its_stores_may_hold_checkpoints(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The one that counts comes last, behind those of others."""
    rows: dict[str, list[Thing | Exception]] = {"file_system": [], "volume": [], "snapshot": [], "bucket": []}
    rows[kind] = [Thing("y"), tagged(campaign="train-2"), tagged()]
    looks(monkeypatch, instance=[tagged()], **rows)
    assert stakes.may_hold_checkpoints(NOBODY, "train")  # type: ignore[arg-type]


def test_only_its_own_stores_that_stay_may_hold_its_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Thing | Exception] = [Thing("y"), tagged(campaign="train-2"), tagged(leaving=True)]
    looks(monkeypatch, instance=[tagged(), FAR], subnet=[tagged()], file_system=rows, volume=[])
    assert not stakes.may_hold_checkpoints(NOBODY, "train")  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [FAR, refusal("AccessDenied", 403, "DescribeFileSystems")])
def test_where_nobody_could_look_there_may_be_checkpoints(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    looks(monkeypatch, file_system=[], volume=[Thing("y"), error])
    assert stakes.may_hold_checkpoints(NOBODY, "train")  # type: ignore[arg-type]


FOLDER = "campaigns/train/id-1"
OBJECTS = {f"{FOLDER}/golden/step-00000040/{name}": 3 for name in ("manifest.json", "rank-0.bin", "rank-1.bin")}


class Archive:
    """The archive bucket as S3 shows it: a manifest, and a listing of two pages."""

    def __init__(self, manifest: bytes | Exception | None = None) -> None:
        self.manifest, self.listing = manifest, dict[str, int](OBJECTS)
        self.broken: Exception | None = None

    def client(self, service: str) -> Any:
        assert service == "s3"
        return self

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        assert (Bucket, Key) == ("archive", f"{FOLDER}/archive-manifest.json")
        if isinstance(self.manifest, Exception):
            raise self.manifest
        body = manifest() if self.manifest is None else self.manifest
        return {"Body": io.BytesIO(body)}

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_objects_v2"
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:
        assert (Bucket, Prefix) == ("archive", f"{FOLDER}/")
        rows = [{"Key": key, "Size": size} for key, size in self.listing.items()]
        yield {"Contents": rows[:1]}
        if self.broken is not None:
            raise self.broken
        yield {"Contents": rows[1:]}
        yield {}


def manifest(**changes: Any) -> bytes:
    told = {
        "campaign": "train", "identity": "id-1", "step": 40, "tokens": 1, "proof": "recorded in training",
        "recorded_evaluation_loss": 1.0, "reference_evaluation_loss": 1.0, "restored_evaluation_loss": 1.0,
        "objects": [{"key": key, "size_bytes": 3, "sha256": "0" * 64, "version": ""} for key in OBJECTS],
        "refused": [],
    }  # fmt: skip
    return json.dumps(told | changes).encode()


def proven(bucket: Archive, identity: str = "id-1") -> bool:
    return stakes.sound_archive(bucket, "archive", "train", identity) is not None  # type: ignore[arg-type]


def test_an_archive_is_proven_by_its_manifest_and_all_of_its_objects() -> None:
    bucket = Archive()
    found = stakes.sound_archive(bucket, "archive", "train", "id-1")  # type: ignore[arg-type]
    assert found is not None and found.step == 40
    bucket.listing[f"{FOLDER}/record/of-another-kind"] = 9
    assert proven(bucket)


@pytest.mark.parametrize("key", list(OBJECTS))
@pytest.mark.parametrize("size", [None, 0, 2, 4])
def test_an_object_that_is_missing_or_of_another_size_proves_nothing(key: str, size: int | None) -> None:
    bucket = Archive()
    del bucket.listing[key]
    if size is not None:
        bucket.listing[key] = size
    assert not proven(bucket)


@pytest.mark.parametrize(
    "body",
    [manifest(identity="id-2"), manifest(identity=""), manifest(campaign="train-2"), manifest(objects=[]), b"{"],
    ids=["another's", "nobody's", "of another name", "of nothing", "damaged"],
)
def test_a_manifest_that_is_not_of_this_identity_proves_nothing(body: bytes) -> None:
    assert not proven(Archive(body))


def test_what_carries_no_identity_has_no_archive() -> None:
    assert not proven(Archive(), "")


@pytest.mark.parametrize(
    "error", [FAR, refusal("NoSuchKey", 404), refusal("NoSuchBucket", 404), refusal("AccessDenied", 403)]
)
def test_what_nobody_could_read_proves_nothing(error: Exception) -> None:
    assert not proven(Archive(error))
    bucket = Archive()
    bucket.broken = error
    assert not proven(bucket)


def test_a_failure_of_s3_is_no_word_on_the_archive() -> None:
    with pytest.raises(ClientError, match="SlowDown"):
        proven(Archive(refusal("SlowDown", 503)))


def test_a_mistake_of_ours_is_no_weather(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, file_system=[ValueError("a mistake")])
    with pytest.raises(ValueError, match="a mistake"):
        stakes.may_hold_checkpoints(NOBODY, "train")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a mistake"):
        proven(Archive(ValueError("a mistake")))


TRAINS = AttemptRecord(launched=AttemptLaunched(attempt=1, committed_step=20), launched_at=NOON)
ARCHIVED = ArchiveVerified(manifest="m", step=40)
NOTHING = {"closed": True, "committed_at_finish": -1, "unrecognised": CheckpointUnrecognised(files=0, bytes=0, why="")}
OVER = AttemptRecord(launched=AttemptLaunched(attempt=1, committed_step=-1), launched_at=NOON)


@pytest.mark.parametrize(
    ("facts", "kept"),
    [
        ({}, True),  # its record has no events
        ({"begun_with": Stage.BAKE}, False),
        ({"begun_with": Stage.BAKE, "running_stage": Stage.PROVISION}, True),
        ({"begun_with": Stage.BAKE, "finished_stages": {Stage.PROVISION: StageOutput()}}, True),
        ({"begun_with": Stage.BAKE, "finished_stages": {Stage.BAKE: StageOutput()}}, False),
        ({"attempts": (TRAINS,)}, True),
        ({"attempts": (TRAINS,), "archive": ARCHIVED}, False),
        ({"attempts": (TRAINS,), "archive": ArchiveVerified(manifest="m", step=19)}, True),
        ({"attempts": (TRAINS,), "abandoned": True}, False),
        ({"attempts": (OVER,), **NOTHING}, False),
    ],
)
def test_a_stack_is_protected_while_it_holds_or_will_hold_what_is_nowhere_else(
    facts: dict[str, Any], kept: bool
) -> None:
    assert stakes.at_stake(CampaignState(**facts), None) is kept
