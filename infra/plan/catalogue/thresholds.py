"""Thresholds of the health check, each with its unit and source."""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import Any

from infra.plan.catalogue.reading import read
from trainer.contract import Limits
from trainer.contract.frozen import Frozen


class Threshold(Frozen):
    probe: str
    """Names of the probes that it judges."""
    value: Any
    unit: str
    source: str


class Thresholds(Frozen):
    as_of: date
    numbers: dict[str, Threshold]
    states: dict[str, str]
    """Probe without a number -> what it requires, or the source of that."""


@cache
def thresholds() -> Thresholds:
    return Thresholds.model_validate(read("thresholds"))


def number(name: str) -> float:
    """Return a threshold's value; raise KeyError if the table lacks it."""
    return float(thresholds().numbers[name].value)


@cache
def limits() -> Limits:
    """Return the limits that the nodes themselves judge by."""
    return Limits.model_validate({name: thresholds().numbers[name].value for name in Limits.model_fields})
