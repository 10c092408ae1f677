"""The certificate finds what it does not know, and the sweep removes what is provably the campaign's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from infra.bake.bake import BUILDER_IMAGE
from infra.errors import NotProven
from infra.inventory import certify, sweep
from infra.session.context import Context
from infra.spec.names import CAMPAIGN_TAG
from tests.drills.leaks import Environment, environment, round_of, run_round

OURS = [{"Key": CAMPAIGN_TAG, "Value": "drilled"}]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Environment, Context]]:
    with environment(tmp_path_factory.mktemp("leaks")) as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify, "SETTLE_S", 2.0)


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.nightly
def test_seeded_leaks_are_named_or_shown_and_swept_and_nobody_elses_is(
    planted: tuple[Environment, Context], seed: int
) -> None:
    ground, context = planted
    leaks = round_of(ground, random.Random(seed), seed, 10)
    failures = [(leak.plant.kind, leak.how, why) for leak, why in run_round(ground, context, leaks) if why]
    assert failures == []


def volume(ground: Environment, **more: Any) -> str:
    return str(ground.client("ec2").create_volume(AvailabilityZone="us-east-1a", Size=1, **more)["VolumeId"])


def tagged(kind: str) -> dict[str, Any]:
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": OURS}]}


def look(ground: Environment, context: Context) -> certify.Certificate:
    known = certify.knowledge(context.store, context.names)
    return certify.look_through(context.account, context.names, "", context.spec.account, (), known)


def test_awss_own_parameters_are_nobodys_leak(planted: tuple[Environment, Context]) -> None:
    ground, context = planted
    ssm = ground.client("ssm")
    ssm.get_parameter(Name=BUILDER_IMAGE)
    names = [parameter["Name"] for parameter in ssm.describe_parameters()["Parameters"]]
    assert any(name.startswith("/aws/service/") for name in names), "the emulation no longer lists them"
    assert not [line for line in look(ground, context).suspects if "/aws/service/" in line]


def test_a_snapshot_of_a_left_volume_is_found_through_it(planted: tuple[Environment, Context]) -> None:
    ground, context = planted
    left = volume(ground, **tagged("volume"))
    copy = ground.client("ec2").create_snapshot(VolumeId=left)["SnapshotId"]
    assert f"snapshot {copy}" in look(ground, context).found
    rows = {one.thing.id: one for one in sweep.look(context).left}
    assert rows[left].removable and not rows[copy].removable, "a copy may be what somebody wanted to keep"
    swept = sweep.remove(context, [rows[left]])
    assert [one.thing.id for one in swept.removed] == [left] and not swept.stuck
    ground.client("ec2").delete_snapshot(SnapshotId=copy)


def test_what_was_there_before_is_not_the_campaigns_though_it_points_at_it(
    planted: tuple[Environment, Context],
) -> None:
    ground, context = planted
    copy = ground.client("ec2").create_snapshot(VolumeId=ground.own.volume)["SnapshotId"]
    assert f"snapshot {copy}" in look(ground, context).found
    known = certify.knowledge(context.store, context.names)
    older = certify.Knowledge(known.names, known.places, known.began, {"snapshot": frozenset([copy])})
    seen, _ = certify.survey_all(context.account)
    assert copy not in [one.id for one, _ in older.judge(seen)["snapshot"]]
    ground.client("ec2").delete_snapshot(SnapshotId=copy)


def test_a_denied_removal_is_said_at_once_and_not_tried_again(planted: tuple[Environment, Context]) -> None:
    ground, context = planted
    left = volume(ground, **tagged("volume"))
    rule = {"service": "ec2", "action": "DeleteVolume", "code": "UnauthorizedOperation", "status": 403, "times": None}
    ground.camped.ask("faults", add=[rule])
    try:
        swept = sweep.remove(context, [one for one in sweep.look(context).left if one.thing.id == left])
        hits = ground.camped.ask("faults")["rules"][0]["hits"]
    finally:
        ground.camped.ask("faults", clear=True)
    assert "UnauthorizedOperation" in swept.stuck[0][1] and hits == 1
    ground.client("ec2").delete_volume(VolumeId=left)


def test_a_listing_that_breaks_off_is_could_not_look_though_nothing_was_seen(
    planted: tuple[Environment, Context],
) -> None:
    ground, context = planted
    rule = {"service": "ec2", "action": "DescribeVolumes", "code": "UnauthorizedOperation", "status": 403}
    ground.camped.ask("faults", add=[rule | {"times": None}])
    try:
        seen = look(ground, context)
    finally:
        ground.camped.ask("faults", clear=True)
    assert any(item.startswith("volume: UnauthorizedOperation") for item in seen.blind)
    with pytest.raises(NotProven, match="could not look: volume"):
        certify.refuse_unclean(seen)


@pytest.mark.nightly
def test_a_look_that_fails_in_passing_is_looked_again(planted: tuple[Environment, Context]) -> None:
    ground, context = planted
    seen, _ = certify.survey_all(context.account)
    known = certify.knowledge(context.store, context.names)
    quiet = certify.Knowledge(
        known.names, frozenset(), known.began, {kind: frozenset(row.id for row in rows) for kind, rows in seen.items()}
    )
    # With this status botocore does not try again by itself; twice, so that the second look meets it too.
    rule = {"service": "ec2", "action": "DescribeVolumes", "code": "InternalError", "status": 400, "times": 2}
    ground.camped.ask("faults", add=[rule])
    try:
        certificate = certify._certify_until_settled(context, quiet)
        hits = ground.camped.ask("faults")["rules"][0]["hits"]
    finally:
        ground.camped.ask("faults", clear=True)
    assert hits == 2 and certificate.clean, (certificate.blind, certificate.found)


def test_what_appears_only_at_the_second_look_is_found(
    planted: tuple[Environment, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    ground, context = planted
    seen, _ = certify.survey_all(context.account)
    known = certify.knowledge(context.store, context.names)
    monkeypatch.setattr(certify, "CONFIRM_S", 1.0)
    made: list[str] = []

    def turns(seconds: float, interval: float = 0.5) -> Iterator[None]:
        made.append(volume(ground, **tagged("volume")))
        yield

    monkeypatch.setattr(context, "turns", turns)
    quiet = certify.Knowledge(
        known.names, frozenset(), known.began, {k: frozenset(t.id for t in v) for k, v in seen.items()}
    )
    certificate = certify._certify_until_settled(context, quiet)
    assert made and certificate.found == (f"volume {made[0]}",), certificate.found
    ground.client("ec2").delete_volume(VolumeId=made[0])


def test_a_bucket_with_data_is_never_emptied(planted: tuple[Environment, Context]) -> None:
    ground, context = planted
    s3 = ground.client("s3")
    s3.create_bucket(Bucket="kept-data")
    s3.put_bucket_tagging(Bucket="kept-data", Tagging={"TagSet": OURS})
    s3.put_object(Bucket="kept-data", Key="precious", Body=b"1")
    swept = sweep.remove(context, [one for one in sweep.look(context).left if one.thing.id == "kept-data"])
    assert not swept.removed and "BucketNotEmpty" in swept.stuck[0][1]
    s3.delete_object(Bucket="kept-data", Key="precious")
    s3.delete_bucket(Bucket="kept-data")
