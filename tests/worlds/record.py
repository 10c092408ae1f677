"""The record of a campaign in S3 in memory, by a clock that goes only when it is told to."""

from __future__ import annotations

from typing import Any

from infra.record.store import CampaignStore
from tests.worlds.s3 import FakeS3, Time


class MemoryRecord:
    """One campaign's record, to which several writers may write."""

    def __init__(self, campaign: str = "train") -> None:
        self.time, self.campaign = Time(), campaign
        self.s3: Any = FakeS3(self.time)

    def store(self, writer: str = "driver") -> CampaignStore:
        return CampaignStore(self.s3, "state", self.campaign, writer, now=self.time.wall)
