"""A driver that wakes up, also within a call: its lease is asked before each request that changes something."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from infra.aws.account import Account
from infra.errors import LeaseLost
from infra.rehearsal.aws.world import World
from tests.rehearsal.aws_account import signed_in


@pytest.fixture
def account(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """The driver's own account, its bucket made while it still drove."""
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "sleeper")
    made = signed_in(monkeypatch, world)
    made.client("s3").create_bucket(Bucket="woken")
    yield made
    made.guard = None
    for item in made.client("s3").list_objects_v2(Bucket="woken").get("Contents", ()):
        made.client("s3").delete_object(Bucket="woken", Key=item["Key"])
    made.client("s3").delete_bucket(Bucket="woken")


def lost() -> None:
    raise LeaseLost("the driver lease is lost")


def changes(world: World) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{world.endpoint_url}/_site/changes", data=b"") as answer:
        return [row for row in json.loads(answer.read())["changes"] if row["app"] == "sleeper"]


def test_nothing_is_sent_that_changes_something_once_the_lease_is_lost(world: World, account: Account) -> None:
    before, account.guard = len(changes(world)), lost
    with pytest.raises(LeaseLost):
        account.client("s3").put_object(Bucket="woken", Key="campaigns/c/events/driver/000001.json", Body=b"{}")
    with pytest.raises(LeaseLost):
        account.client("ec2").create_vpc(CidrBlock="10.0.0.0/16")
    assert len(changes(world)) == before


def test_a_request_that_is_tried_again_after_the_lease_was_lost_is_not_sent(world: World, account: Account) -> None:
    rule = {"service": "s3", "action": "PutObject", "code": "SlowDown", "status": 503, "times": 1}
    urllib.request.urlopen(f"{world.endpoint_url}/_site/faults", data=json.dumps({"add": [rule]}).encode()).close()
    asked: list[int] = []

    def later() -> None:
        asked.append(1)
        if len(asked) > 1:
            lost()

    account.guard = later
    with pytest.raises(LeaseLost):
        account.client("s3").put_object(Bucket="woken", Key="one", Body=b"")
    assert account.client("s3").list_objects_v2(Bucket="woken")["KeyCount"] == 0, "the first try was refused"


def test_looking_and_leases_go_on(account: Account) -> None:
    account.guard = lost
    assert account.client("s3").list_objects_v2(Bucket="woken")["KeyCount"] == 0
    account.client("s3").put_object(Bucket="woken", Key="campaigns/c/leases/driver.json", Body=b"{}")
