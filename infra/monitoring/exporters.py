"""The metrics of other projects' exporters, and the names of all metrics that there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from infra.tables import table
from trainer.contract.frozen import Frozen
from trainer.contract.metrics import METRICS

GPU_CHART = "dcgm-exporter"


class RecordingRule(Frozen):
    """A series that Prometheus computes; each has the label `campaign`."""

    expr: str
    unit: str = ""
    help: str


@cache
def recordings() -> Mapping[str, RecordingRule]:
    """Return the recording rules by the names of their series.
    https://prometheus.io/docs/prometheus/latest/configuration/recording_rules/"""
    rows = table("infra.monitoring", "recordings")
    return {name: RecordingRule.model_validate(row) for name, row in rows.items()}


class ExportedMetric(Frozen):
    unit: str = ""
    kind: Literal["gauge", "counter"] = "gauge"
    help: str


class OtherExporter(Frozen):
    """A project's exporter."""

    source: str
    """The page that names its metrics."""
    labels: tuple[str, ...]
    metrics: Mapping[str, ExportedMetric]
    also: Mapping[str, str] = {}
    """Metric -> its kind, of those that it exports and nothing of ours reads."""


@cache
def exporters() -> Mapping[str, OtherExporter]:
    """Return the exporters by name."""
    rows = table("infra.monitoring", "exporters")
    return {name: OtherExporter.model_validate(row) for name, row in rows.items()}


@cache
def known_metrics() -> tuple[str, ...]:
    """Return the names of all metrics: ours, then those that rules record, then those of other exporters that are
    read."""
    foreign_metrics = (name for exporter in exporters().values() for name in exporter.metrics)
    return (*(metric.full_name for metric in METRICS), *recordings(), *foreign_metrics)


def with_counters(chart: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a chart's values with the list of counters, if it is the exporter of the GPUs: its own list lacks those of
    NVLink and of throttling, and a list of ours replaces it as a whole.
    https://github.com/NVIDIA/dcgm-exporter/blob/4.5.3-4.8.2/deployment/templates/metrics-configmap.yaml"""
    if chart != GPU_CHART:
        return values
    exporter = exporters()[GPU_CHART]
    rows = [f"{name}, {metric.kind}, {metric.help.replace(',', ';')}" for name, metric in exporter.metrics.items()]
    rows += [f"{name}, {kind}, {name}" for name, kind in exporter.also.items()]
    return {**values, "customMetrics": "\n".join(rows)}
