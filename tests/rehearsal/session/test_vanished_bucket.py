"""A state bucket that has vanished is said and never made anew; an account in which nothing is yet gets one."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from infra.aws.account import Account
from infra.cli.end.down import down_command
from infra.cli.end.orphans import orphans_command
from infra.errors import UserError
from infra.rehearsal.aws.world import World
from infra.session.session import campaigns, ensure_bucket, record_of
from infra.spec.names import CAMPAIGN_TAG, FOUNDATION_TAG, buckets
from tests.rehearsal.aws_account import signed_in


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    yield signed_in(monkeypatch, world)


def names(account: Account) -> set[str]:
    return {bucket["Name"] for bucket in account.client("s3").list_buckets()["Buckets"]}


def test_a_new_account_gets_its_bucket_and_a_vanished_one_is_refused_with_what_is_left(
    world: World,
    here: Account,
) -> None:
    where = buckets(world.account, world.region)
    with pytest.raises(UserError, match="no such campaign"):
        record_of("train", world.region)
    ensure_bucket(here, where.state, world.account)
    assert where.state in names(here) and campaigns(here, where.state) == []
    ec2, s3 = here.client("ec2"), here.client("s3")
    for left in (CAMPAIGN_TAG, FOUNDATION_TAG, "archive"):
        s3.delete_bucket(Bucket=where.state)
        if left == "archive":
            s3.create_bucket(Bucket=where.archive)
            seen = where.archive
        else:
            marks = [{"ResourceType": "vpc", "Tags": [{"Key": left, "Value": "x"}]}]
            seen = ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=marks)["Vpc"]["VpcId"]
        told = {
            "open": lambda: ensure_bucket(here, where.state, world.account),
            "status": lambda: record_of("train", world.region),
            "orphans": lambda: orphans_command(world.region, True, True, Console(file=StringIO())),
            "down": lambda: down_command("train", world.region, True, Console(file=StringIO()), consent=True),
        }
        for call in told.values():
            with pytest.raises(UserError, match="state bucket is gone") as refused:
                call()
            assert seen in str(refused.value) and f"create-bucket --bucket {where.state}" in str(refused.value)
        assert where.state not in names(here)
        ec2.delete_vpc(VpcId=seen) if left != "archive" else s3.delete_bucket(Bucket=seen)
        ensure_bucket(here, where.state, world.account)
    assert where.state in names(here), "nothing was left: a new beginning"
