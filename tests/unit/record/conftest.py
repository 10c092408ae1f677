"""Leases by a virtual clock, which no thread renews: each renewal is the test's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from infra.record import lease as module
from infra.record.holder import Holder
from infra.record.lease import Lease
from infra.record.store import CampaignStore
from tests.worlds.s3 import FakeS3, Time

TTL = timedelta(seconds=15)


def holder(name: str) -> Holder:
    """On another machine than this: nobody can see whether it lives."""
    return Holder(user=name, host=name, boot_id=name, pid_namespace="", pid=1, start_ticks=1)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(module, "_monotonic", made)
    return made


@pytest.fixture
def s3(time: Time) -> FakeS3:
    return FakeS3(time)


class Leases:
    """No thread renews them: each renewal is the test's."""

    def __init__(self, s3: FakeS3, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Lease, "_renew", lambda self: None)
        self.store = CampaignStore(s3, "state", "c", "w")

    def of(self, name: str, patient: bool = True) -> Lease:
        return self.store.lease("steward", TTL, holder(name), patient=patient)


@pytest.fixture
def leases(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leases]:
    yield Leases(s3, monkeypatch)
