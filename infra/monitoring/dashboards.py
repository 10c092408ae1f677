"""The dashboards: panels with their queries, of which Grafana's JSON and the page of `bivouac dashboard` are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from infra.monitoring.alerts import CHART, METRIC
from infra.monitoring.exporters import exporters, known_metrics
from infra.tables import table
from trainer.contract.frozen import Frozen

GRAFANA_SCHEMA = 39
ACROSS = "campaigns"
"""The dashboard that compares campaigns: each of its series is one of them."""
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2
"""Of a panel, in units of Grafana's grid, which is 24 wide."""


class Panel(Frozen):
    title: str
    queries: Mapping[str, str]
    """PromQL -> legend; `{{label}}` stands for a label's value."""
    unit: str = "none"
    """As Grafana names it: https://github.com/grafana/grafana/blob/main/packages/grafana-data/src/valueFormats"""
    zero: bool = False
    """Draw from zero."""
    of: str = ""
    """Exporter without which it has no series; empty: ours."""

    def metrics(self) -> set[str]:
        """Return the names of the metrics that its queries read."""
        return {name for query in self.queries for name in METRIC.findall(query)}


class Dashboard(Frozen):
    title: str
    panels: tuple[Panel, ...]


@cache
def dashboards() -> Mapping[str, Dashboard]:
    """Return the dashboards by name. Raises `ValueError` for a panel that reads a metric, or names an exporter, that is
    none."""
    boards = {name: Dashboard.model_validate(row) for name, row in table("infra.monitoring", "dashboards").items()}
    for name, board in boards.items():
        for panel in board.panels:
            unknown = (panel.metrics() - set(known_metrics())) | ({panel.of} - exporters().keys() - {""})
            if unknown or not panel.metrics():
                names = ", ".join(sorted(unknown)) or "no metric"
                raise ValueError(f"panel {panel.title!r} of {name} names what is not there: {names}")
    return boards


def grafana_json(name: str) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it. The data source is a variable, so that it fits any Grafana.
    https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/"""
    board = dashboards()[name]
    return {
        "uid": f"bivouac-{name}",
        "title": f"Bivouac: {board.title}",
        "tags": ["bivouac"],
        "schemaVersion": GRAFANA_SCHEMA,
        "timezone": "utc",
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "15s",
        "templating": {"list": [{"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}]},
        "links": [{"title": "Bivouac", "type": "dashboards", "tags": ["bivouac"], "keepTime": True}],
        "panels": [_grafana_panel(number, panel) for number, panel in enumerate(board.panels)],
    }


def _grafana_panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    limits = {"min": 0} if panel.zero else {}
    targets = [
        {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "range": True, "datasource": _SOURCE}
        for place, (query, legend) in enumerate(panel.queries.items())
    ]
    return {
        "id": number + 1,
        "title": panel.title,
        "description": f"Needs {panel.of}." if panel.of else "",
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, **limits}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def with_dashboards(chart: str, values: dict[str, Any], grafana: bool) -> dict[str, Any]:
    """Return a chart's values with Grafana and its dashboards, or without Grafana, if it is the one that has it.
    https://github.com/grafana/helm-charts/tree/main/charts/grafana#import-dashboards"""
    if chart != CHART:
        return values
    settings: dict[str, Any] = {**values.get("grafana", {}), "enabled": grafana}
    if grafana:
        provider = {
            "name": "bivouac", "orgId": 1, "folder": "Bivouac", "type": "file", "editable": True,
            "options": {"path": "/var/lib/grafana/dashboards/bivouac"},
        }  # fmt: skip
        settings["dashboardProviders"] = {"dashboardproviders.yaml": {"apiVersion": 1, "providers": [provider]}}
        settings["dashboards"] = {"bivouac": {name: {"json": json.dumps(grafana_json(name))} for name in dashboards()}}
    return {**values, "grafana": settings}
