"""Each kind of AWS resource has one definition, and none that is half made."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from infra.inventory import Evidence
from infra.inventory.sweep import Leftover, order
from infra.kinds import BY_NAME, KINDS, Checkpoints, ResourceKind, Thing, kind_named, kind_of_type
from infra.spec import names
from infra.stack import program
from tests.tables import Table

TABLE = Table(__file__)

TYPED = [kind for kind in KINDS if kind.type]


def test_no_two_definitions_are_of_one_kind() -> None:
    for several in (Counter(kind.name for kind in KINDS), Counter(kind.type for kind in TYPED)):
        assert [one for one, count in several.items() if count > 1] == []


@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.name)
def test_what_a_killed_engine_had_made_has_exactly_one_fate(kind: ResourceKind) -> None:
    assert [bool(kind.find), bool(kind.remake), kind.made_over].count(True) == 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.list], ids=lambda kind: kind.name)
def test_what_is_listed_can_be_removed_and_is_not_shown_a_second_time(kind: ResourceKind) -> None:
    assert kind.remove and kind.service
    assert kind.arn or kind.name == "incomplete upload", "the tagging service knows all but uploads"


@TABLE.cases
def test_what_holds_or_makes_another_is_removed_before_it(first: str, then: str) -> None:
    rows = [Leftover(kind, Thing("x"), Evidence.TAG) for kind in (then, first)]
    assert [row.kind for row in sorted(rows, key=order)] == [first, then]


def test_what_refers_to_a_kind_names_one_that_there_is() -> None:
    assert {name for kind in KINDS for name in kind.held_by} <= BY_NAME.keys()
    assert names._PARTS.keys() <= BY_NAME.keys(), "a kind that a campaign names is one that is looked for"


def test_what_may_hold_checkpoints_has_no_price_of_zero() -> None:
    """A file system without a tier in the catalogue bills all the same."""
    holds = [kind for kind in KINDS if kind.checkpoints is Checkpoints.HOLDS]
    assert len(holds) == 4 and [kind.name for kind in holds if kind.price({}) is not None] == []


def test_of_a_kind_that_is_not_defined_nothing_is_known() -> None:
    for unknown in (kind_named("dedicated host"), kind_of_type("aws:sqs/queue:Queue"), kind_named("")):
        assert (unknown.find, unknown.remove, unknown.ask, unknown.type) == (None, None, None, "")
        assert list(unknown.things(None)) == [] and not unknown.holds_state  # type: ignore[arg-type]


def test_every_class_of_aws_resource_that_the_programs_name_has_a_definition() -> None:
    """Read from their text, so that no example has to make each of them."""
    defined = {kind.type.rpartition(":")[2] for kind in TYPED}
    made = {name for path in Path(program.__file__).parent.rglob("*.py") for name in resources_in(path)}
    assert len(made) >= 38, "the programs are read"
    assert made - defined == set()


def resources_in(path: Path) -> set[str]:
    """`aws.ec2.Vpc(...)` -> `Vpc`, of calls that make a resource: arguments, providers and look-ups are none."""
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return {
        func.attr
        for func in calls
        if isinstance(func, ast.Attribute)
        and isinstance(func.value, ast.Attribute)
        and ast.unparse(func.value).startswith("aws.")
        and func.attr[0].isupper()
        and not func.attr.endswith("Args")
    }
