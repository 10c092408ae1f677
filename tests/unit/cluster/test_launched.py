"""Which of its states an instance bills in, by EC2's guide (instance lifecycle): none that ends."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from infra.cluster.nodes import Launched


@pytest.mark.parametrize(
    ("state", "bills"),
    [("pending", True), ("running", True), ("stopping", False), ("stopped", False), ("shutting-down", False)],
)
def test_what_runs_or_will_run_bills_and_what_ends_does_not(state: str, bills: bool) -> None:
    assert Launched("i-1", state, datetime(2026, 11, 23, tzinfo=UTC)).bills is bills
