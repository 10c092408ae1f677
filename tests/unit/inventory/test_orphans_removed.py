"""Orphans are judged again under their campaign's lease while they go, and a reason is there for what stays."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra.errors import UserError
from infra.inventory import orphans
from infra.inventory.orphans import Orphan, OrphanKeeper
from infra.inventory.sweep import Leftover, Swept
from infra.record.identity import claim_identity
from infra.spec.names import CAMPAIGN_ID_TAG
from tests.unit.inventory.orphan_account import ELSEWHERE, PAST, REGION, Account
from tests.unit.inventory.orphan_account import account as account
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3


def test_what_is_removed_is_judged_again_under_its_lease(account: Account) -> None:
    account.begun("train")
    account.stand("volume", "vol-1")
    account.stand("volume", "vol-2")
    shown = list(account.look().orphans)
    account.stuck = {"vol-2": "VolumeInUse"}
    swept = orphans.clear(account.keeper, shown)
    assert [row.thing.id for row in swept.removed] == ["vol-1"] == account.removals
    assert [(row.thing.id, reason) for row, reason in swept.stuck] == [("vol-2", "VolumeInUse")]
    assert not account.keeper.leases, "nothing is held any more"
    assert not any(event.kind == "abandoned" for event in account.record("train").events())
    lease = account.record("train").lease("driver", timedelta(seconds=30), ELSEWHERE)
    lease.acquire()
    reasons = [reason for _, reason in orphans.clear(account.keeper, shown).stuck]
    assert reasons == ["campaign train has a driver again"] * 2 and account.removals == ["vol-1"]


def test_a_steward_that_is_back_and_a_training_meanwhile_keep_everything(account: Account) -> None:
    for campaign in ("stewarded", "trained", "dead"):
        account.begun(campaign)
        account.stand("volume", f"vol-{campaign}", campaign)
    shown = list(account.look().orphans)
    account.record("stewarded").lease("steward", timedelta(seconds=30), ELSEWHERE).acquire()
    account.trained("trained")
    swept = orphans.clear(account.keeper, shown)
    assert account.removals == ["vol-dead"]
    reasons = {row.thing.id: reason for row, reason in swept.stuck}
    assert reasons["vol-stewarded"].startswith("campaign stewarded: its steward lives")
    assert reasons["vol-trained"].startswith("not archived: 1 attempts")


def test_each_campaign_is_under_its_own_lease_while_its_things_go(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = account.begun("train")
    own = claim_identity(store, is_adopted=False).identity
    account.begun("other")
    account.stand("volume", "vol-own", tags={CAMPAIGN_ID_TAG: own})
    account.stand("volume", "vol-0", tags={CAMPAIGN_ID_TAG: "id-0"})
    account.stand("instance", "i-other", "other")  # goes first
    held, checks = list[list[str]](), list[str]()
    remove = account._remove

    def removing(keeper: OrphanKeeper, rows: Any) -> Swept:
        held.append(sorted(lease.store.campaign for lease in keeper.leases))
        for lease in keeper.leases:
            monkeypatch.setattr(lease, "check", lambda campaign=lease.store.campaign: checks.append(campaign))
        return remove(keeper, rows)

    monkeypatch.setattr(orphans, "remove", removing)
    orphans.clear(account.keeper, list(account.look(abandon=True).orphans), abandon=True)
    assert held == [["other", "train"]], "one lease for both campaigns of the name"
    assert sorted(checks) == ["other", "train"] and not account.keeper.leases
    given_up = [event.data["identity"] for event in store.events() if event.kind == "abandoned"]
    assert sorted(given_up) == sorted([own, "id-0"])
    assert all(account.record(name).lease("driver", timedelta(seconds=30)).current().record.released  # type: ignore[union-attr]
               for name in ("train", "other"))  # fmt: skip


def test_a_reason_is_there_for_whatever_stays(account: Account) -> None:
    account.begun("train")
    thing = account.stand("anything tagged", f"arn:aws:x:{REGION}:1:thing/1")
    (orphan,) = account.look().orphans
    assert orphan == Orphan(orphan.owner, Leftover("anything tagged", thing, orphan.left.evidence), PAST)
    assert [reason for _, reason in orphans.clear(account.keeper, [orphan]).stuck] == ["it stays"]


def test_a_keeper_has_the_credentials_account_and_refuses_one_whose_records_vanished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = list[tuple[Any, ...]]()
    monkeypatch.setattr(orphans, "refuse_vanished", lambda *key: keys.append(key))
    identity = {"Account": "123456789012"}
    fake: Any = SimpleNamespace(identity=lambda: identity, region="us-east-1", client=lambda service: FakeS3)
    keeper = orphans.keeper(fake, SilentProgress())  # type: ignore[arg-type]
    assert keys == [(fake, keeper.bucket, "123456789012")] and "123456789012" in keeper.bucket != keeper.archive
    assert keeper.store("train").campaign == "train" and keeper.store("train").bucket == keeper.bucket

    def vanished(*_: object) -> None:
        raise UserError("gone", seen="", cure="")

    monkeypatch.setattr(orphans, "refuse_vanished", vanished)
    with pytest.raises(UserError):
        orphans.keeper(fake, SilentProgress())  # type: ignore[arg-type]
