"""What AWS sells, for how much and when: the catalogue's refresh against the emulated account, over HTTP."""

from __future__ import annotations

import io
import itertools
import json
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from rich.console import Console

from infra.aws import block_purchase
from infra.aws.account import Account
from infra.aws.market import block_offerings
from infra.aws.price_list import compare, describe_types
from infra.cli.prepare.block import buy_command, offers_command
from infra.cli.prepare.catalogue import file_text, header
from infra.errors import TemporaryError, UserError
from infra.plan import catalogue
from infra.plan.catalogue.reading import read
from infra.record.store import CampaignStore
from infra.session.session import FOUNDATION, ensure_bucket
from infra.spec.names import buckets
from tests.example import example_spec
from tests.rehearsal.acting import policy
from tests.rehearsal.aws_account import Account as Account_
from tests.rehearsal.aws_account import World, make_user, signed_in

FILE = Path(catalogue.__file__).with_name("instance_types.yaml")


def site(world: World, route: str, **asked: Any) -> dict[str, Any]:
    with urlopen(f"{world.endpoint_url}/_site/{route}", data=json.dumps(asked).encode()) as answer:
        return dict(json.loads(answer.read()))


def test_the_catalogue_agrees_with_describe_instance_types_but_where_it_says_why(here: Account) -> None:
    seen = compare(here, date(2026, 11, 21), lambda text: None)
    assert {(difference.instance_type, difference.field) for difference in seen.differences} == {
        ("trn2.48xlarge", "accelerator_memory_gib")
    }, seen.differences
    assert all(difference.kept for difference in seen.differences) and not seen.not_offered


def test_a_refresh_takes_a_new_price_a_lost_one_and_a_found_one(world: World, here: Account) -> None:
    changed = {"p5.48xlarge": "31.5", "p5e.48xlarge": "40", "g5.8xlarge": None}
    before = site(world, "market")["on_demand"]
    site(world, "market", on_demand=changed)
    try:
        seen = compare(here, date(2026, 11, 21), lambda text: None)
    finally:
        site(world, "market", on_demand={name: before[name] for name in changed})
    prices = {
        difference.instance_type: (difference.ours, difference.aws)
        for difference in seen.differences
        if difference.kept is None
    }
    assert prices == {"p5.48xlarge": ("55.04", "31.5"), "p5e.48xlarge": (None, "40"), "g5.8xlarge": ("2.448", None)}
    rows = seen.content["types"]
    assert rows["p5.48xlarge"]["price_usd_per_hour"] == "31.5"
    assert "absent" not in rows["p5e.48xlarge"] and rows["p5e.48xlarge"]["price_usd_per_hour"] == "40"
    assert (
        "price_usd_per_hour" not in rows["g5.8xlarge"] and "price" in rows["g5.8xlarge"]["absent"]["price_usd_per_hour"]
    )
    text = file_text(header(FILE.read_text()), seen.content)
    again = yaml.safe_load(text)
    assert (again["price"]["as_of"], again["price"]["region"]) == (date(2026, 11, 21), here.region)
    origins = {name: again[name] for name in ("hardware", "price", "performance")}
    items = [catalogue.InstanceType.model_validate({"name": n, **origins, **row}) for n, row in again["types"].items()]
    assert next(item for item in items if item.name == "p5.48xlarge").price_usd_per_hour == Decimal("31.5")


def test_a_type_that_a_region_has_not_got_keeps_its_figures(
    world: World, here: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(account: Account, names: list[str]) -> dict[str, dict[str, Any]]:
        return {name: row for name, row in describe_types(account, names).items() if name != "p5.48xlarge"}

    monkeypatch.setattr("infra.aws.price_list.describe_types", elsewhere)
    before = site(world, "market")["on_demand"]
    site(world, "market", on_demand={"p5.48xlarge": None})
    try:
        seen = compare(here, date(2026, 11, 21), lambda text: None)
    finally:
        site(world, "market", on_demand={"p5.48xlarge": before["p5.48xlarge"]})
    assert seen.not_offered == ("p5.48xlarge",)
    assert seen.content["types"]["p5.48xlarge"]["price_usd_per_hour"] == "55.04"
    assert "p5.48xlarge" not in {difference.instance_type for difference in seen.differences}


def test_the_file_is_as_a_refresh_would_write_it() -> None:
    text = FILE.read_text()
    assert file_text(header(text), read("instance_types")) == text


BLOCK = {"nodes": {"count": 2, "instance_type": "p5.48xlarge", "capacity": "capacity-block"},
         "training": {"steps": 100, "global_batch": 256}}  # fmt: skip


@pytest.fixture
def command(here: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Writes a spec and runs a command on it: (exit code, what it printed)."""
    monkeypatch.setenv("BIVOUAC_SITE", "in-process")
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path / "results"))

    def run(function: Any, changes: dict[str, Any], *arguments: Any) -> tuple[int, Any]:
        path, said = tmp_path / "spec.yaml", io.StringIO()
        path.write_text(example_spec(**changes).model_dump_json(exclude_none=True))
        code = function(path, *arguments, Console(file=said, width=200))
        return code, said.getvalue()

    return run


def purchases(world: World) -> list[dict[str, Any]]:
    ec2 = Account_(world, *world.operator_key).ec2
    reservations = ec2.describe_capacity_reservations(Filters=[{"Name": "tag-key", "Values": ["bivouac:block-for"]}])
    return list(reservations["CapacityReservations"])


def first_offering(here: Account, changes: dict[str, Any] = BLOCK) -> str:
    found = block_offerings(here, example_spec(**changes), timedelta(hours=1))
    return str(next(one["CapacityBlockOfferingId"] for one in found if one["AvailabilityZone"] == "us-east-1a"))


def test_offers_tell_zones_prices_and_whether_the_quota_holds_the_nodes(command: Any, world: World) -> None:
    code, text = command(offers_command, BLOCK, [], True, True)
    market = json.loads(text)
    choices = market["choices"]
    assert code == 0 and not market["unanswered"]
    own = [choice for choice in choices if choice["instance_type"] == "p5.48xlarge"]
    assert {one["capacity"] for one in own} == {"on-demand", "spot", "capacity-block"}
    demand = next(one for one in own if one["capacity"] == "on-demand")
    assert (demand["usd_per_hour"], demand["fits"], demand["quota"]["vcpus"]) == (55.04, True, 1536)
    assert abs(Decimal(str(demand["usd"])) - Decimal("55.04") * 2 * Decimal(str(market["hours"]))) < 1
    block = next(one for one in own if one["capacity"] == "capacity-block")
    assert market["block_hours"] == 24 and block["usd"] == 1510.28
    assert {"p5en.48xlarge", "p6-b200.48xlarge"} <= {choice["instance_type"] for choice in choices}
    large = {"nodes": {"count": 16, "instance_type": "p5.48xlarge"}, "training": {"global_batch": 1024}}
    _, text = command(offers_command, large, [], False, True)
    wanted = [choice for choice in json.loads(text)["choices"] if choice["capacity"] in ("on-demand", "spot")]
    assert wanted and not any(one["fits"] for one in wanted)
    assert command(offers_command, BLOCK, [], False, False)[0] == 0


def test_an_api_that_is_denied_leaves_the_other_offers(command: Any, world: World) -> None:
    rule = {"service": "servicequotas", "action": "*", "code": "AccessDenied", "status": 403, "times": None}
    (added,) = site(world, "faults", add=[rule])["added"]
    try:
        _, text = command(offers_command, BLOCK, [], False, True)
    finally:
        site(world, "faults", clear=[added])
    market = json.loads(text)
    assert "AccessDenied" in market["unanswered"][0]
    assert all(choice["fits"] is None for choice in market["choices"] if choice["capacity"] == "on-demand")


def test_a_block_is_bought_once_for_a_campaign_and_shown_again(command: Any, world: World, here: Account) -> None:
    changes = {**BLOCK, "campaign": "bought"}
    offering, before = first_offering(here, changes), len(purchases(world))
    code, text = command(buy_command, changes, offering, True, False)
    (made,) = purchases(world)[before:]
    assert code == 0 and f"reservation_id: {made['CapacityReservationId']}" in text
    assert f"block_end: {made['EndDate']:%Y-%m-%dT%H:%M:%SZ}" in text and "usd_per_hour: 31.464" in text
    tags = {tag["Key"]: tag["Value"] for tag in made["Tags"]}
    assert tags["bivouac:foundation"] == "true" and "bivouac:campaign" not in tags
    code, again = command(buy_command, changes, offering, True, False)
    assert code == 0 and made["CapacityReservationId"] in again and len(purchases(world)) == before + 1
    with pytest.raises(UserError, match="has a block already"):
        command(buy_command, changes, "cbr-another", True, False)


@pytest.mark.parametrize("effect", ["drop-after", "refuse-after"])
def test_a_purchase_whose_answer_was_lost_is_found_and_not_made_again(
    command: Any, world: World, here: Account, effect: str
) -> None:
    changes = {**BLOCK, "campaign": f"lost-{effect}"}
    offering, before = first_offering(here, changes), len(purchases(world))
    site(world, "faults", add=[{"service": "ec2", "action": "PurchaseCapacityBlock", "effect": effect}])
    code, text = command(buy_command, changes, offering, True, True)
    (made,) = purchases(world)[before:]
    assert code == 0 and json.loads(text)["reservation_id"] == made["CapacityReservationId"]


def test_a_buyer_that_was_killed_after_the_call_finds_its_block(command: Any, world: World, here: Account) -> None:
    changes = {**BLOCK, "campaign": "killed"}
    offering, before = first_offering(here, changes), len(purchases(world))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_purchase.Counter, "_keep", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            command(buy_command, changes, offering, True, True)
    code, text = command(buy_command, changes, offering, True, True)
    (made,) = purchases(world)[before:]
    assert code == 0 and json.loads(text)["reservation_id"] == made["CapacityReservationId"]


def test_nothing_is_bought_while_it_cannot_be_told_whether_it_was(command: Any, world: World, here: Account) -> None:
    changes = {**BLOCK, "campaign": "unclear"}
    offering, before = first_offering(here, changes), len(purchases(world))
    site(world, "faults", add=[{"service": "ec2", "action": "PurchaseCapacityBlock", "effect": "drop"}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_purchase, "PATIENCE_S", 0.2)
        for _ in range(2):
            with pytest.raises(TemporaryError, match="it is not known yet"):
                command(buy_command, changes, offering, True, True)
        assert len(purchases(world)) == before
        patch.setattr(block_purchase, "SETTLED", timedelta(0))
        assert command(buy_command, changes, offering, True, True)[0] == 0
    assert len(purchases(world)) == before + 1


@pytest.fixture
def buyer(world: World, here: Account, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counters of campaigns, with the written rights of a block's buyer and no others."""
    key = make_user(world, f"buyer-{next(_BUYERS)}", *policy("block-buyer-role")["Statement"])
    own = signed_in(monkeypatch, world, key)
    bucket = buckets(world.account, world.region).state

    def counter(campaign: str) -> block_purchase.Counter:
        store = CampaignStore(own.client("s3"), bucket, FOUNDATION, "buyer", folder=FOUNDATION)
        return block_purchase.Counter(own, store, campaign, lambda: None)

    return counter


_BUYERS = itertools.count()


def offerings(here: Account) -> list[block_purchase.Offering]:
    found = block_offerings(here, example_spec(**BLOCK), timedelta(hours=1))
    return [block_purchase.offering_of(one) for one in found]


def test_a_buyer_whom_ec2_refuses_is_told_so_and_may_buy_another_at_once(
    world: World, here: Account, buyer: Any
) -> None:
    ensure_bucket(here, buckets(world.account, world.region).state, world.account)
    gone, other, *_ = offerings(here)
    before = len(purchases(world))
    site(world, "blocks", sold_out=True)
    try:
        buyer("faster").buy(gone, "somebody", print)
        counter = buyer("slower")
        with pytest.raises(UserError, match="EC2 refuses the purchase") as refused:
            counter.buy(gone, "me", print)
        assert "InvalidCapacityBlockOfferingId.NotFound" in str(refused.value)
        assert counter.standing(print) is None, "what was refused stands for nothing"
        bought = counter.buy(other, "me", print)
        assert counter.standing(print) == bought and bought.reservation_id and len(purchases(world)) == before + 2
        again = counter.buy(offerings(here)[0], "me", print)
        assert again.refused is None, "what is on sale again may be bought"
    finally:
        site(world, "blocks", sold_out=False)


def test_what_ec2_says_is_not_hidden_by_a_record_that_cannot_be_written(
    world: World, here: Account, buyer: Any
) -> None:
    ensure_bucket(here, buckets(world.account, world.region).state, world.account)
    gone = offerings(here)[0].model_copy(update={"id": "cbr-gone"})
    unwritten = {"service": "s3", "action": "PutObject", "path": "*/blocks/unrecorded/*", "skip": 1, "times": None,
                 "code": "AccessDenied", "status": 403}  # fmt: skip
    (rule,) = site(world, "faults", add=[unwritten])["added"]
    counter = buyer("unrecorded")
    try:
        with pytest.raises(UserError, match="EC2 refuses the purchase") as refused:
            counter.buy(gone, "me", print)
    finally:
        site(world, "faults", clear=[rule])
    assert "InvalidCapacityBlockOfferingId.NotFound" in str(refused.value) and "AccessDenied" in str(refused.value)
    with pytest.raises(TemporaryError, match="it is not known yet"):
        counter.standing(print)


def test_a_block_that_does_not_cover_the_campaign_or_its_budget_is_not_bought(
    command: Any, world: World, here: Account
) -> None:
    before = len(purchases(world))
    poor = {**BLOCK, "campaign": "poor", "money": {"budget_usd": 100}}
    with pytest.raises(UserError, match="costs more than the campaign's budget"):
        command(buy_command, poor, first_offering(here, poor), True, False)
    elsewhere = {**BLOCK, "campaign": "elsewhere", "zone": "us-east-1c"}
    with pytest.raises(UserError, match="another type or zone"):
        command(buy_command, elsewhere, first_offering(here, elsewhere), True, False)
    torn = {**BLOCK, "campaign": "torn", "second_zone": "us-east-1e"}
    with pytest.raises(UserError, match="no control plane there"):
        command(buy_command, torn, first_offering(here, torn), True, False)
    with pytest.raises(UserError, match="does not use a capacity block"):
        command(buy_command, {"campaign": "demand"}, "cbr-1", True, False)
    with pytest.raises(UserError, match="no such offering now"):
        command(buy_command, {**BLOCK, "campaign": "stale"}, "cbr-gone", True, False)
    assert len(purchases(world)) == before
