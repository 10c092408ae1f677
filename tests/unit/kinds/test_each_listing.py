"""Each kind's listing over several pages: what it asks for, and what it makes of AWS's items."""

from __future__ import annotations

import pytest

from infra.kinds import KINDS, kind_named
from tests.unit.kinds.aws_by_model import ByModel
from tests.unit.kinds.listings_of_ec2 import EC2, Case
from tests.unit.kinds.listings_of_services import SERVICES

CASES = [*EC2, *SERVICES]


def test_every_kind_with_a_listing_is_written_out_here() -> None:
    assert {case.kind for case in CASES} == {kind.name for kind in KINDS if kind.list} - {"incomplete upload"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_a_listing_shows_every_page_as_aws_tells_it(case: Case) -> None:
    account, kind = ByModel({case.operation: {case.result: case.items}, **case.more}), kind_named(case.kind)
    seen = [
        (thing.id, thing.name, dict(thing.tags), kind.price(thing.traits), thing.leaving, thing.created)
        for thing in kind.things(account)
    ]
    assert seen == case.rows
    assert account.calls[0] == (case.operation, case.asked)
    assert {name for name, _ in account.calls} == {case.operation, *case.more} and not account.changes
