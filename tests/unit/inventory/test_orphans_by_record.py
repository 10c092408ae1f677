"""Whose a tagged resource is, and whether it may go: by record, identity, tags and clock, without an account."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.inventory import orphans
from infra.kinds import Thing
from infra.record.identity import IDENTITY, claim_identity
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.record.payloads.training import ArchiveVerified
from infra.record.store import CampaignStore
from infra.spec.names import CAMPAIGN_ID_TAG, EXPIRES_TAG, REGION_TAG
from tests.unit.inventory.orphan_account import ELSEWHERE, FUTURE, PAST, REGION, Account
from tests.unit.inventory.orphan_account import account as account
from tests.worlds.s3 import NOON, refusal

ROLE = "role"
"""A kind that every region lists."""


def words(account: Account, **asked: Any) -> dict[str, str]:
    """Return campaign -> why it is over, or who cares for it."""
    sight = account.look(**asked)
    return {owner.campaign: owner.why for owner in (*sight.cared_for, *(orphan.owner for orphan in sight.orphans))}


def test_a_campaign_is_over_by_its_record_or_by_its_time_alone(account: Account) -> None:
    torn_down = account.trained("ended")
    torn_down.append(StageFinished(stage="teardown", seconds=1.0))
    for campaign, expires in (("ended", FUTURE), ("forgotten", PAST), ("runs", FUTURE), ("undated", "")):
        if campaign != "ended":
            account.begun(campaign)
        account.stand("volume", f"vol-{campaign}", campaign, expires)
    account.stand("volume", "vol-dateless", "odd", "soon")
    account.stand("volume", "vol-zoneless", "zoneless", (NOON + timedelta(minutes=1)).replace(tzinfo=None).isoformat())
    account.stand("volume", "vol-abroad", "abroad", "2026-11-22T14:02:00+02:00")
    assert words(account) == {
        "ended": "its record says that it was torn down",
        "forgotten": "its time ran out 2026-11-22 11:00 UTC and nobody looks after it",
        "runs": "its time runs until 2026-11-22 13:00 UTC",
        "undated": "no tag tells when it expires, and no record that it was torn down",
        "odd": "no tag tells when it expires, and no record that it was torn down",
        "zoneless": "its time runs until 2026-11-22 12:01 UTC",
        "abroad": "its time runs until 2026-11-22 12:02 UTC",
    }
    sight = account.look()
    dates = {orphan.left.thing.id: orphan.expires for orphan in sight.orphans}
    assert dates == {"vol-ended": FUTURE, "vol-forgotten": PAST}
    assert [owner.campaign for owner in sight.cared_for] == ["abroad", "odd", "runs", "undated", "zoneless"]
    assert all(orphan.removable and not orphan.owner.holds and not orphan.owner.lost for orphan in sight.orphans)


def test_the_latest_date_counts_and_the_moment_itself_is_over(account: Account) -> None:
    account.begun("train")
    account.stand("volume", "vol-1", expires=PAST)
    account.stand("volume", "vol-2", expires=(NOON + timedelta(minutes=1)).isoformat())
    assert account.ids() == [] and account.ids(now=NOON + timedelta(minutes=1)) == ["vol-1", "vol-2"]


@pytest.mark.parametrize("role", ["driver", "steward"])
def test_who_lives_counts_more_than_any_date(account: Account, role: str) -> None:
    account.begun("train")
    account.stand("volume", "vol-1")
    lease = account.record("train").lease(role, timedelta(seconds=30), ELSEWHERE)
    lease.acquire()
    assert words(account)["train"].startswith(f"its {role} lives: me@laptop") and account.ids() == []
    account.time.go(3600)
    assert account.ids() == ["vol-1"], "it has died"


def test_only_what_carries_a_tag_and_stays_is_looked_at_and_of_one_campaign_if_asked(account: Account) -> None:
    for campaign in ("train", "other"):
        account.begun(campaign)
        account.stand("volume", f"vol-{campaign}", campaign)
        account.stand("anything tagged", f"arn:aws:x:{REGION}:1:thing/only-{campaign}", campaign)
    account.stand("volume", "vol-leaves", leaving=True)
    account.survey["volume"].append(Thing("vol-nobodys", tags={EXPIRES_TAG: PAST}))
    account.survey["anything tagged"].append(Thing("arn:aws:x:r:1:thing/nobodys"))
    for campaign in ("train", "other"):
        account.stand("anything tagged", f"arn:aws:ec2:{REGION}:1:volume/vol-{campaign}", campaign)
    arns = [f"arn:aws:x:{REGION}:1:thing/only-{campaign}" for campaign in ("other", "train")]
    assert account.ids() == ["vol-other", "vol-train", *arns], "what a listing shows is shown once"
    assert account.ids(campaign_only="train") == ["vol-train", arns[1]]
    assert [orphan.removable for orphan in account.look().orphans] == [True, True, False, False], (
        "an ARN is for a person"
    )


def test_they_go_in_the_order_of_removal(account: Account) -> None:
    account.begun("train")
    for kind in ("VPC", "subnet", "instance", "volume"):
        account.stand(kind, f"{kind}-1")
    assert account.ids() == ["instance-1", "volume-1", "subnet-1", "VPC-1"]


def test_what_could_not_be_seen_is_said(account: Account) -> None:
    account.begun("train")
    account.stand("instance", "i-1")
    account.stand("volume", "vol-1", unread="AccessDenied")
    account.blind = {"file system": "Throttling"}
    assert set(account.look().blind) == {"volume", "file system"}
    assert "AccessDenied" in account.look().blind["volume"]


def test_what_every_region_lists_is_judged_where_it_belongs(account: Account) -> None:
    account.begun("train")
    account.stand(ROLE, "here", tags={REGION_TAG: REGION})
    account.stand(ROLE, "there", tags={REGION_TAG: "us-west-2"})
    account.stand(ROLE, "unknown")
    account.stand(ROLE, "while-recorded", created=NOON)
    account.stand(ROLE, "before", created=NOON - timedelta(seconds=1))
    account.stand("volume", "vol-of-this-region", tags={REGION_TAG: "us-west-2"})
    account.stand(ROLE, "nothing-recorded", "unheard-of", created=NOON)
    assert set(account.ids()) == {"here", "while-recorded", "vol-of-this-region"}
    foreign = {one.thing.id: one.why for one in account.look().elsewhere}
    assert set(foreign) == {"there", "unknown", "before", "nothing-recorded"}
    assert foreign["there"] == "it is of us-west-2: `bivouac sweep --orphans --region us-west-2` judges it there"
    assert foreign["unknown"].startswith("neither a tag nor a record tells its region")
    (there,) = [row for row in account.look().elsewhere if row.thing.id == "there"]
    assert str(there).startswith("role there of train is left alone: it is of us-west-2")
    account.time.go(60)
    account.record("train").append(StageStarted(stage="provision"))
    account.stand(ROLE, "at-the-end", created=NOON + timedelta(seconds=60))
    account.stand(ROLE, "after", created=NOON + timedelta(seconds=61))
    assert "at-the-end" in account.ids() and "after" not in account.ids()


def test_what_is_not_archived_is_shown_and_held(account: Account) -> None:
    store = account.trained("train")
    account.stand("file system", "fs-1")
    account.stand("elastic address", "eip-1")
    sight = account.look()
    assert not any(orphan.removable for orphan in sight.orphans), "its cluster and network read it"
    (holds,) = {orphan.owner.holds for orphan in sight.orphans}
    assert holds.startswith("not archived: 1 attempts, newest checkpoint known: step 40")
    assert "`bivouac down train` archives" in holds and not any(orphan.owner.lost for orphan in sight.orphans)
    store.append(ArchiveVerified(manifest="m", step=40))
    assert all(orphan.removable and orphan.owner.holds == "" for orphan in account.look().orphans)


LOST = "so it may have trained, and no archive of"


def test_a_record_that_is_missing_proves_nothing_and_what_bills_and_holds_nothing_goes(account: Account) -> None:
    account.stand("file system", "fs-1", tags={CAMPAIGN_ID_TAG: "id-1"})
    account.stand("subnet", "subnet-1")
    account.stand("elastic address", "eip-1")
    rows = {orphan.left.thing.id: orphan for orphan in account.look().orphans}
    assert {id for id, one in rows.items() if one.removable} == {"eip-1"}
    assert {row.owner.identity for row in rows.values()} == {"id-1"}, "a network is its neighbours'"
    holds = rows["fs-1"].owner.holds
    assert holds.startswith(f"held: its record is missing, {LOST} id-1 is proven")
    assert "`bivouac sweep train --abandon` gives it up" in holds and rows["fs-1"].owner.lost
    account.archived = {("archive", "train", "id-0"), ("archive", "other", "id-1")}
    assert not {orphan.left.thing.id for orphan in account.look().orphans if orphan.removable} - {"eip-1"}
    account.archived = {("archive", "train", "id-1")}
    assert all(orphan.removable for orphan in account.look().orphans), "its archive is proven"
    account.archived, account.holds = set(), False
    assert all(orphan.removable for orphan in account.look().orphans), "nothing may hold a checkpoint"


def test_without_an_identity_no_archive_can_be_its_own(account: Account) -> None:
    account.stand("file system", "fs-1")
    (orphan,) = account.look().orphans
    assert "no archive of it, which carries no identity, is proven" in orphan.owner.holds and orphan.owner.lost


def test_an_earlier_campaign_of_the_name_is_not_judged_by_the_later_ones_record(account: Account) -> None:
    store = account.begun("train")
    own = claim_identity(store, is_adopted=False).identity
    store.append(StageFinished(stage="teardown", seconds=1.0))
    account.stand("file system", "fs-own", tags={CAMPAIGN_ID_TAG: own})
    account.stand("file system", "fs-earlier", tags={CAMPAIGN_ID_TAG: "id-0"})
    rows = {orphan.left.thing.id: orphan for orphan in account.look().orphans}
    assert rows["fs-own"].removable and rows["fs-own"].owner.identity == own
    earlier = rows["fs-earlier"]
    assert not earlier.removable and earlier.owner.identity == "id-0" and earlier.owner.lost
    assert f"the record of that name is not of campaign id-0, {LOST} id-0" in earlier.owner.holds


def test_an_identity_that_cannot_be_read_leaves_all_to_a_person(account: Account) -> None:
    account.begun("train").put(f"campaigns/train/{IDENTITY}", b"\0")
    account.stand("file system", "fs-1", expires="")
    why = words(account)["train"]
    assert "`bivouac sweep train --abandon` gives it up" in why and account.ids() == []
    sight = account.look(abandon=True)
    assert [orphan.removable for orphan in sight.orphans] == [True]
    assert sight.orphans[0].owner.why == "it is given up by name, with all that it may hold"


def test_a_record_that_s3_does_not_answer_for_ends_the_look(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    account.begun("train")
    account.stand("volume", "vol-1")

    def throttled(store: CampaignStore) -> None:
        raise refusal("SlowDown", 503)

    monkeypatch.setattr(orphans, "read_identity", throttled)
    for abandon in (True, False):
        with pytest.raises(ClientError):
            account.look(abandon=abandon)
