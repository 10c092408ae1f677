"""A selection of types and purchase options through the real engine; `tests/drills/fleet.py` goes through all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rehearsal.stack.fleet import Case, all_cases, fleet_in, life

SELECTED = (
    "p5.48xlarge on-demand", "p6-b300.48xlarge capacity-block by id", "p4d.24xlarge reservation by id",
    "g6e.48xlarge spot", "p5en.48xlarge reservation by group", "trn1.32xlarge reservation by open",
)  # fmt: skip
"""Each way of buying once, and the layouts that differ most."""


@pytest.mark.nightly
def test_node_groups_are_made_read_launched_changed_and_destroyed_as_they_are_bought(tmp_path: Path) -> None:
    cases = [case for case in all_cases() if str(case) in SELECTED]
    assert len(cases) == len(SELECTED)
    late = next(case for case in cases if str(case) == "p5.48xlarge on-demand")
    late.short_s = 1.0
    wrong = list[str]()

    def failed(case: Case, error: AssertionError) -> None:
        wrong.append(f"{case}: {error}")

    with fleet_in(tmp_path) as fleet:
        told = life(fleet, cases, failed)
    assert not wrong, "\n".join(wrong)
    placed = 2
    made = 1 + 1 + 2 * len(cases) + 2 * len(cases) + placed
    assert told["up create"] == made and "refresh update" not in told
    assert told["change update"] == len(cases), "only the node groups' largest size changes"
