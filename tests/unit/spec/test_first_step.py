"""How long ranks wait for each other in an attempt's first step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from infra.spec.training import Training


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 120.0),
        ({"compile": "layers"}, 480.0),
        ({"compile": "layers", "first_step_timeout_s": 90.0}, 90.0),
        ({"compile": "layers", "collective_timeout_s": 500.0}, 500.0),
    ],
)
def test_a_first_step_that_compiles_may_take_as_long_as_the_steward_bears(
    settings: dict[str, Any], seconds: float
) -> None:
    training = Training.model_validate({"steps": 9, "global_batch": 8, "collective_timeout_s": 30.0, **settings})
    assert training.longest_first_step_s(timedelta(minutes=10)) == seconds
