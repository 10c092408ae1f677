"""The recording rules: what several panels compute, once, as series of their own that are kept with all others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from trainer.contract.frozen import Frozen

_TABLE = Path(__file__).with_name("recordings.yaml")


class RecordingRule(Frozen):
    """A series that Prometheus computes; each has the label `campaign`."""

    expr: str
    unit: str = ""
    help: str


@cache
def recordings() -> Mapping[str, RecordingRule]:
    """Return the recording rules by the names of their series.
    https://prometheus.io/docs/prometheus/latest/configuration/recording_rules/"""
    table = yaml.safe_load(_TABLE.read_text())
    return {name: RecordingRule.model_validate(row) for name, row in table.items()}
