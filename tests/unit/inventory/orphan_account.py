"""An account with tagged resources of campaigns, some of which are over, and their records."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra.inventory import orphans
from infra.inventory.orphans import OrphanKeeper, OrphanSight
from infra.inventory.sweep import Leftover, Swept
from infra.kinds import Thing
from infra.record.holder import Holder
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched
from infra.record.payloads.stages import StageStarted
from infra.record.store import CampaignStore
from infra.spec.names import CAMPAIGN_TAG, EXPIRES_TAG
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import NOON, FakeS3, Time

PAST, FUTURE = (NOON - timedelta(hours=1)).isoformat(), (NOON + timedelta(hours=1)).isoformat()
ELSEWHERE = Holder(user="me", host="laptop", boot_id="x", pid_namespace="", pid=1, start_ticks=1)
REGION = FakeS3.meta.region_name


class Account:
    """An account whose surveys, archives and removals are rows of a test; its records are the product's own."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.time, self.survey, self.blind = Time(), dict[str, list[Thing]](), dict[str, str]()
        self.s3: Any = FakeS3(self.time)
        self.archived, self.holds = set[tuple[str, str, str]](), True
        self.stuck, self.removals = dict[str, str](), list[str]()
        account: Any = SimpleNamespace(client=lambda service: self.s3, lease_client=lambda ttl: self.s3)
        self.keeper = OrphanKeeper(account, "state", "archive", SilentProgress())  # type: ignore[arg-type]
        patch.setattr(orphans, "survey_all", lambda account: (self.survey, self.blind))
        patch.setattr(orphans, "sound_archive", lambda account, *key: "sound" if key in self.archived else None)
        patch.setattr(orphans, "may_hold_checkpoints", lambda account, campaign: self.holds)
        patch.setattr(orphans, "remove", self._remove)
        patch.setattr(orphans, "datetime", SimpleNamespace(
            now=lambda zone: self.time.wall().astimezone(zone), fromisoformat=datetime.fromisoformat))  # fmt: skip
        patch.setattr(OrphanKeeper, "store", lambda keeper, campaign: self.record(campaign))

    def record(self, campaign: str) -> CampaignStore:
        return CampaignStore(self.s3, "state", campaign, "test", now=self.time.wall)

    def begun(self, campaign: str) -> CampaignStore:
        store = self.record(campaign)
        store.append(StageStarted(stage="bake"))
        return store

    def trained(self, campaign: str) -> CampaignStore:
        store = self.begun(campaign)
        store.append(AttemptLaunched(attempt=1, committed_step=-1))
        store.append(AttemptEnded(attempt=1, failure="node", detail="died", step=47, committed_at_end=40))
        return store

    def stand(self, kind: str, id: str, campaign: str = "train", expires: str = PAST, **more: Any) -> Thing:
        tags = {CAMPAIGN_TAG: campaign, EXPIRES_TAG: expires, **more.pop("tags", {})}
        thing = Thing(id, tags={name: text for name, text in tags.items() if text}, **more)
        self.survey.setdefault(kind, []).append(thing)
        return thing

    def look(self, **asked: Any) -> OrphanSight:
        return orphans.look(self.keeper, **asked)

    def ids(self, **asked: Any) -> list[str]:
        return [orphan.left.thing.id for orphan in self.look(**asked).orphans]

    def _remove(self, keeper: OrphanKeeper, rows: Iterable[Leftover]) -> Swept:
        keeper.guard()
        rows = list(rows)
        self.removals += [row.thing.id for row in rows if row.thing.id not in self.stuck]
        held = tuple((row, self.stuck[row.thing.id]) for row in rows if row.thing.id in self.stuck)
        return Swept(tuple(row for row in rows if row.thing.id not in self.stuck), held)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    return Account(monkeypatch)
