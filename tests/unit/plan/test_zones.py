"""Zones of the control plane: chosen among those that the account has and EKS takes."""

from __future__ import annotations

import pytest

from infra.errors import UserError
from infra.plan.catalogue import no_control_plane
from infra.plan.facts import Zone
from infra.plan.zones import control_plane_zones
from tests.example import example_spec

VIRGINIA = tuple(Zone(name=f"us-east-1{letter}", id=f"use1-az{number}") for letter, number in zip("abcdef", (6, 1, 2, 4, 3, 5), strict=True))  # fmt: skip  # noqa: E501
OHIO = tuple(
    Zone(name=f"us-east-2{letter}", id=f"use2-az{number}") for letter, number in zip("abc", "123", strict=True)
)


def chosen(zone: str, zones: tuple[Zone, ...] = VIRGINIA, second: str | None = None) -> tuple[str, str]:
    return control_plane_zones(example_spec(region=zone[:-1], zone=zone, second_zone=second), zones)


def test_the_zone_after_the_nodes_own_is_the_second_as_it_was_before() -> None:
    assert [chosen(f"us-east-1{letter}")[1][-1] for letter in "abcf"] == ["b", "c", "d", "a"]
    assert chosen("us-east-1a", second="us-east-1d") == ("us-east-1a", "us-east-1d")


def test_no_zone_is_made_up() -> None:
    assert chosen("us-east-2c", OHIO) == ("us-east-2c", "us-east-2a")
    with pytest.raises(UserError, match="no such zone") as refused:
        chosen("us-east-2d", OHIO)
    assert "us-east-2a, us-east-2b, us-east-2c" in str(refused.value.cure)


def test_a_control_plane_stays_out_of_the_zones_that_eks_refuses() -> None:
    assert no_control_plane() == {"use1-az3", "usw1-az2", "cac1-az3"}
    assert chosen("us-east-1d") == ("us-east-1d", "us-east-1f"), "e is use1-az3"
    assert chosen("us-east-1e") == ("us-east-1a", "us-east-1b"), "the nodes' own zone takes none"
    with pytest.raises(UserError, match="no control plane there") as refused:
        chosen("us-east-1a", second="us-east-1e")
    assert "use1-az3" in str(refused.value.seen)


def test_a_region_with_one_zone_for_eks_is_refused() -> None:
    california = (Zone(name="us-west-1a", id="usw1-az2"), Zone(name="us-west-1b", id="usw1-az1"))
    for zone in ("us-west-1a", "us-west-1b"):
        with pytest.raises(UserError, match="two zones"):
            chosen(zone, california)
    closed = (*OHIO[:1], OHIO[1].model_copy(update={"state": "unavailable"}))
    with pytest.raises(UserError, match="two zones"):
        chosen("us-east-2a", closed)
