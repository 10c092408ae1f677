"""What AWS sells, for how much and when: the catalogue's refresh against the emulated account, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from aws_account import *  # noqa: F403
from aws_account import World

from infra import catalogue
from infra.account import Account
from infra.actions.catalogue import compare
from infra.catalogue.reading import read
from infra.catalogue.writing import header, write

FILE = Path(catalogue.__file__).with_name("instance_types.yaml")


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    key, secret = world.operator_key
    for name, value in {
        "AWS_ENDPOINT_URL": world.endpoint_url, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield Account("us-east-1")


def site(world: World, route: str, **asked: Any) -> dict[str, Any]:
    with urlopen(f"{world.endpoint_url}/_site/{route}", data=json.dumps(asked).encode()) as answer:
        return dict(json.loads(answer.read()))


def test_the_catalogue_agrees_with_describe_instance_types_but_where_it_says_why(here: Account) -> None:
    seen = compare(here, date(2026, 11, 21), lambda text: None)
    assert {(one.instance_type, one.field) for one in seen.differences} == {
        ("trn2.48xlarge", "accelerator_memory_gib")
    }, seen.differences
    assert all(one.kept for one in seen.differences) and not seen.not_offered


def test_a_refresh_takes_a_new_price_a_lost_one_and_a_found_one(world: World, here: Account) -> None:
    changed = {"p5.48xlarge": "31.5", "p5e.48xlarge": "40", "g5.8xlarge": None}
    before = site(world, "market")["on_demand"]
    site(world, "market", on_demand=changed)
    try:
        seen = compare(here, date(2026, 11, 21), lambda text: None)
    finally:
        site(world, "market", on_demand={name: before[name] for name in changed})
    prices = {one.instance_type: (one.ours, one.aws) for one in seen.differences if one.kept is None}
    assert prices == {"p5.48xlarge": ("55.04", "31.5"), "p5e.48xlarge": (None, "40"), "g5.8xlarge": ("2.448", None)}
    rows = seen.content["types"]
    assert rows["p5.48xlarge"]["price_usd_per_hour"] == "31.5"
    assert "absent" not in rows["p5e.48xlarge"] and rows["p5e.48xlarge"]["price_usd_per_hour"] == "40"
    assert (
        "price_usd_per_hour" not in rows["g5.8xlarge"] and "price" in rows["g5.8xlarge"]["absent"]["price_usd_per_hour"]
    )
    text = write(header(FILE.read_text()), seen.content)
    again = yaml.safe_load(text)
    assert again["price"]["as_of"] == date(2026, 11, 21)
    origins = {name: again[name] for name in ("hardware", "price", "performance")}
    items = [catalogue.InstanceType.model_validate({"name": n, **origins, **row}) for n, row in again["types"].items()]
    assert next(item for item in items if item.name == "p5.48xlarge").price_usd_per_hour == Decimal("31.5")


def test_the_file_is_as_a_refresh_would_write_it() -> None:
    text = FILE.read_text()
    assert write(header(text), read("instance_types")) == text
