"""The metrics of other projects' exporters, and the names of all metrics that there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from trainer.contract.frozen import Frozen
from trainer.contract.metrics import METRICS

_TABLE = Path(__file__).with_name("exporters.yaml")


class ExportedMetric(Frozen):
    unit: str = ""
    help: str


class OtherExporter(Frozen):
    """A project's exporter."""

    source: str
    """The page that names its metrics."""
    labels: tuple[str, ...]
    metrics: Mapping[str, ExportedMetric]


@cache
def exporters() -> Mapping[str, OtherExporter]:
    """Return the exporters by name."""
    table = yaml.safe_load(_TABLE.read_text())
    return {name: OtherExporter.model_validate(row) for name, row in table.items()}


@cache
def known_metrics() -> tuple[str, ...]:
    """Return the names of all metrics: ours, then those of other exporters that are read."""
    others = (name for exporter in exporters().values() for name in exporter.metrics)
    return (*(metric.full_name for metric in METRICS), *others)
