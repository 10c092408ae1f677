"""Whether the AWS budget counts anything: the tag's state at the emulated Cost Explorer, and what people are told."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from rich.console import Console

from infra.aws.account import Account
from infra.aws.cost_tag import Counting, activate, cost_tag
from infra.cli.prepare.block import offers_command
from infra.errors import LeaseLost
from infra.spec.names import CAMPAIGN_TAG
from tests.example import example_spec
from tests.rehearsal.aws_account import World, make_user, signed_in


def tags(world: World, **asked: Any) -> dict[str, Any]:
    with urlopen(f"{world.endpoint_url}/_site/cost-tags", data=json.dumps(asked).encode() or None) as answer:
        return dict(json.loads(answer.read()))


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    tags(world, listed={CAMPAIGN_TAG: "Inactive"}, linked=False)
    yield signed_in(monkeypatch, world)
    tags(world, listed={CAMPAIGN_TAG: "Inactive"}, linked=False)


def test_an_inactive_tag_is_told_by_a_look_and_activated_by_a_run_once(world: World, here: Account) -> None:
    seen = cost_tag(here)
    assert seen.counting is Counting.INACTIVE and not seen.counts and "NOTHING" in seen.sentence()
    assert tags(world)["listed"] == {CAMPAIGN_TAG: "Inactive"}, "a look changes nothing"
    assert activate(here).counting is Counting.ACTIVATED
    assert tags(world)["listed"] == {CAMPAIGN_TAG: "Active"}
    assert activate(here).counting is Counting.ACTIVE and cost_tag(here).counts


def test_a_key_that_aws_does_not_list_yet_is_not_activated_and_the_cure_says_when(world: World, here: Account) -> None:
    tags(world, listed={"team": "Active"})
    seen = activate(here)
    assert seen.counting is Counting.UNLISTED and "up to a day" in seen.sentence()
    assert tags(world)["listed"] == {"team": "Active"}


def test_a_member_of_an_organization_is_sent_to_the_paying_account(world: World, here: Account) -> None:
    tags(world, linked=True)
    seen = activate(here)
    assert seen.counting is Counting.PAYERS and not seen.counts
    assert "paying account" in seen.sentence() and "update-cost-allocation-tags-status" in seen.sentence()


def test_whoever_may_look_but_not_activate_is_told_both(
    world: World, here: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = {"Effect": "Allow", "Action": "ce:ListCostAllocationTags", "Resource": "*"}
    other = look | {"Action": "ec2:DescribeVpcs"}
    for name, statement, counting in (("looks", look, Counting.INACTIVE), ("blind", other, Counting.UNKNOWN)):
        key, secret = make_user(world, name, statement)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        seen = activate(Account("us-east-1"))
        assert seen.counting is counting and "AccessDenied" in seen.sentence()


def test_an_answer_that_never_comes_is_no_error(here: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    account = Account("us-east-1")
    # Clients share it: put back afterwards.
    monkeypatch.setitem(account.client("ce").meta.config.retries, "total_max_attempts", 1)
    assert activate(account).counting is Counting.UNKNOWN


def test_a_driver_without_its_lease_activates_nothing(world: World, here: Account) -> None:
    def lost() -> None:
        raise LeaseLost("another driver is at it", seen="x", cure="y")

    here.guard = lost
    with pytest.raises(LeaseLost):
        activate(here)
    assert tags(world)["listed"] == {CAMPAIGN_TAG: "Inactive"}


def test_offers_say_what_the_tags_state_means(
    world: World, here: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BIVOUAC_SITE", "in-process")
    path = tmp_path / "spec.yaml"
    path.write_text(example_spec().model_dump_json(exclude_none=True))

    def said(as_json: bool) -> str:
        out = io.StringIO()
        offers_command(path, [], False, as_json, Console(file=out, width=200))
        return out.getvalue()

    assert "counts NOTHING" in said(False)
    assert json.loads(said(True))["budget_tag"]["counting"] == "inactive"
    tags(world, listed={CAMPAIGN_TAG: "Active"})
    assert "the AWS budget counts this campaign" in said(False)
