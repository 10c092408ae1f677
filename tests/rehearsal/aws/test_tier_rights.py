"""A shared tier in S3 with the very rights of the campaign's roles: ranks write and remove, the steward looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from infra.checkpoints.place import BucketPlace, bucket_place
from infra.rehearsal.aws.world import World
from infra.spec.names import buckets, data_source, shared_tier
from infra.stack.access import policies
from tests.example import example_spec
from tests.manifests import manifest_of, shard_at
from tests.part import part
from tests.rehearsal.aws_account import Account, code_of, make_user
from trainer.builtin.checkpoint.bucket import BucketTier
from trainer.builtin.checkpoint.fence import claim
from trainer.contract import DATA_IN_S3, DATA_MANIFEST_NAME, SHARED_TIER_IN_S3, Expectation
from trainer.health.probes import bucket_probes

SPEC = example_spec(storage={"shared": "none"})
WHERE = buckets(SPEC.account, SPEC.region)
TIER = shared_tier(SPEC.account, SPEC.region, SPEC.campaign, "id")
DATA = data_source(SPEC.account, SPEC.region, "d" * 64)


@pytest.fixture(scope="module")
def made(aws: Account) -> Account:
    for bucket in (WHERE.archive, WHERE.data, WHERE.state):
        aws.s3.create_bucket(Bucket=bucket)
    aws.s3.put_bucket_versioning(Bucket=WHERE.archive, VersioningConfiguration={"Status": "Enabled"})
    aws.s3.put_object(Bucket=WHERE.data, Key=f"datasets/{'d' * 64}/{DATA_MANIFEST_NAME}", Body=b"{}")
    aws.s3.put_object(Bucket=WHERE.archive, Key="campaigns/other/golden", Body=b"gold")
    return aws


def signed(patch: pytest.MonkeyPatch, world: World, name: str, statements: list[dict[str, Any]]) -> Any:
    key, secret = make_user(world, name, *statements)
    values = {"AWS_ENDPOINT_URL": world.endpoint_url, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    for variable, value in (values | {"AWS_DEFAULT_REGION": world.region}).items():
        patch.setenv(variable, value)
    patch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials of whoever came first
    return boto3.client("s3")


@pytest.fixture
def rank(world: World, made: Account, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    yield signed(monkeypatch, world, f"rank-{request.node.name}", policies.trainer(SPEC))


def test_a_rank_does_all_that_the_tier_asks_of_it(rank: Any, made: Account, tmp_path: Path) -> None:
    file = tmp_path / "attempt-0001/a.pt"
    file.parent.mkdir()
    file.write_bytes(b"x" * 1000)
    tier, shard = BucketTier(TIER, SPEC.campaign), shard_at(file)
    folder = f"{TIER.removeprefix(f's3://{WHERE.archive}/')}/step-00000030/attempt-0001/cut"
    made.s3.create_multipart_upload(Bucket=WHERE.archive, Key=folder)
    claim(tier, 1)
    assert tier.clean((), 1) == ["upload of step-00000030/attempt-0001/cut"]
    for step in (10, 20):
        tier.take(step, shard, file, None)
        tier.publish(manifest_of(step, (shard,), campaign=SPEC.campaign), 1)
    assert tier.retain(1, 20, (), 1, -1) == [10] and [m.step for m in tier.committed()] == [20]
    assert tier.fetch(20, shard, tmp_path / "again") == 1000
    tier.publish(manifest_of(20, (shard,), campaign=SPEC.campaign, tokens=7), 1)  # in place of the first
    assert [m.tokens for m in tier.committed()] == [7]


def test_a_rank_reads_no_other_campaigns_things_and_changes_no_archive(rank: Any) -> None:
    archive = {"Bucket": WHERE.archive, "Key": "campaigns/other/golden"}
    assert code_of(lambda: rank.get_object(**archive)) == "AccessDenied"
    assert code_of(lambda: rank.delete_object(**archive)) == "AccessDenied"
    assert code_of(lambda: rank.put_object(Bucket=WHERE.archive, Key="copies/other/x", Body=b"")) == "AccessDenied"
    assert code_of(lambda: rank.put_object(Bucket=WHERE.data, Key="datasets/x", Body=b"")) == "AccessDenied"
    assert code_of(lambda: rank.list_objects_v2(Bucket=WHERE.archive, Prefix="campaigns/")) == "AccessDenied"
    assert code_of(lambda: rank.get_object(Bucket=WHERE.state, Key="x")) == "AccessDenied"


def test_preflight_proves_both_places_and_leaves_nothing(rank: Any, made: Account) -> None:
    asked = part(Expectation, shared_tier=TIER, data_source=DATA)
    probes = list(bucket_probes(asked))
    assert [(probe.name, probe.ok) for probe in probes] == [(SHARED_TIER_IN_S3, True), (DATA_IN_S3, True)], probes
    prefix = f"{TIER.removeprefix(f's3://{WHERE.archive}/')}/probe/"
    answer = made.s3.list_object_versions(Bucket=WHERE.archive, Prefix=prefix)
    assert not answer.get("Versions") and not answer.get("DeleteMarkers")


def test_preflight_tells_a_refusal_with_its_place(rank: Any) -> None:
    elsewhere = part(Expectation, shared_tier=f"s3://{WHERE.archive}/copies/other", data_source=f"{DATA}x")
    first, second = bucket_probes(elsewhere)
    assert not first.ok and "AccessDenied" in first.seen and "copies/other" in first.seen and first.cure
    assert not second.ok and second.cure


def test_the_steward_lists_and_prunes_and_writes_nothing(
    world: World, made: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = TIER.removeprefix(f"s3://{WHERE.archive}/")
    sealed = manifest_of(40, campaign=SPEC.campaign).serialize()
    made.s3.put_object(Bucket=WHERE.archive, Key=f"{prefix}/step-00000040/manifest.json", Body=sealed)
    client = signed(monkeypatch, world, "steward", policies.steward(SPEC))
    place = bucket_place(client, TIER)
    assert isinstance(place, BucketPlace) and place.newest() == 40
    assert place.shared_rows(SPEC.campaign)[0].committed
    place.remove(40)
    assert place.newest() < 40
    put = lambda: client.put_object(Bucket=WHERE.archive, Key=f"{prefix}/x", Body=b"")  # noqa: E731
    assert code_of(put) == "AccessDenied"
