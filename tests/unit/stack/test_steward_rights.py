"""The steward's part of AWS by the spec: a right, and an endpoint that bills, only where something asks by it."""

from __future__ import annotations

from typing import Any

import pytest

from infra.spec.services import MONITORING_SERVICE
from infra.stack.access.policies import steward
from tests.example import example_spec


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({}, True),
        ({"addons": {"prometheus": False}}, False),
        ({"storage": {"shared": "none"}}, False),
    ],
    ids=["as it comes", "without Prometheus", "without a file system"],
)
def test_cloudwatch_is_reached_only_where_the_file_systems_figures_are_read(
    changes: dict[str, Any], asks: bool
) -> None:
    spec = example_spec(**changes)
    actions = {action for statement in steward(spec) for action in statement["Action"]}
    assert ("cloudwatch:GetMetricData" in actions) is (MONITORING_SERVICE in spec.services) is asks
