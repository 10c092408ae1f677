"""A lease whose renewals meet a bad way to S3: one socket that hangs, or a server that never answers for some time."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from infra.record.lease import Lease
from infra.record.store import CampaignStore
from infra.rehearsal.aws.world import World
from infra.session import session
from tests.rehearsal.aws_account import signed_in, until

TTL = timedelta(seconds=10)


@pytest.fixture
def lease(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lease]:
    """A driver's, taken."""
    monkeypatch.setattr(session, "LEASE_TTL", TTL)
    account = signed_in(monkeypatch, world)
    account.client("s3").create_bucket(Bucket="renewed")
    made = session.driver_lease(CampaignStore(account.client("s3"), "renewed", "c", "w"), account)
    made.acquire()
    yield made
    faults(world, clear=True)
    made.release()


def faults(world: World, **asked: Any) -> Any:
    with urllib.request.urlopen(f"{world.endpoint_url}/_site/faults", data=json.dumps(asked).encode()) as answer:
        return json.loads(answer.read())


def test_a_socket_that_hangs_does_not_lose_the_lease(world: World, lease: Lease) -> None:
    rule = {"service": "s3", "action": "PutObject", "path": "*/leases/*", "effect": "delay", "delay_s": 15.0}
    faults(world, add=[rule])
    before = lease.covers_until

    def renewed() -> bool:
        lease.check()
        hits = [rule["hits"] for rule in faults(world)["rules"] if rule["effect"] == "delay"]
        return hits == [1] and lease.covers_until > before

    until(renewed)


def test_a_renewal_that_lands_while_no_try_is_answered_does_not_lose_the_lease_to_itself(
    world: World, lease: Lease
) -> None:
    rule = {"service": "s3", "action": "PutObject", "path": "*/leases/*", "effect": "refuse-after", "status": 503}
    faults(world, add=[rule | {"code": "SlowDown", "times": 2}])
    before = lease.covers_until

    def renewed() -> bool:
        lease.check()
        return lease.covers_until > before

    until(renewed)
    assert [rule["hits"] for rule in faults(world)["rules"]] == [2], "both tries were carried out or refused, unheard"
