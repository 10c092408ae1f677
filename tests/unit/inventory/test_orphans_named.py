"""What only the tagging service shows is told, unless its own kind's listing shows the very same."""

from __future__ import annotations

import pytest

from infra.inventory.orphans import _is_arn_of

BUDGET = "arn:aws:budgets::123456789012:budget/bivouac-train"
LOGS = "arn:aws:logs:us-east-1:123456789012:log-group:/aws/eks/bivouac-train/cluster"


@pytest.mark.parametrize(
    ("arn", "id", "same"),
    [
        (BUDGET, "bivouac-train", True),
        (BUDGET, "train", False),
        (BUDGET, BUDGET, True),
        (LOGS, "/aws/eks/bivouac-train/cluster", True),
        ("arn:aws:ec2:us-east-1:123456789012:volume/vol-0123456789", "vol-0123456789", True),
        ("arn:aws:ec2:us-east-1:123456789012:volume/vol-0123456789", "0123456789", False),
    ],
)
def test_an_arn_that_only_ends_like_a_listed_id_is_not_hidden_by_it(arn: str, id: str, same: bool) -> None:
    assert _is_arn_of(arn, id) is same
