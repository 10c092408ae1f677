"""What an hour of a listed item costs, by hand from the catalogue's prices; None bills and has no price."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from infra.inventory.sweep import usd_per_hour
from infra.kinds import Thing, kind_named
from tests.tables import Table

TABLE = Table(__file__)


@TABLE.cases
def test_an_hour_costs_what_the_catalogue_says(kind: str, item: dict[str, Any], usd: str | None) -> None:
    assert kind_named(kind).price(item) == (None if usd is None else Decimal(usd))


def test_what_leaves_bills_no_more() -> None:
    there, leaving = (usd_per_hour("NAT gateway", Thing("nat-1", leaving=one)) for one in (False, True))
    assert (there, leaving) == (Decimal("0.045"), 0)
