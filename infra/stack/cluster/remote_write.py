"""Remote write, as the chart's Prometheus takes it."""

from __future__ import annotations

import re
from typing import Any

from infra.monitoring.alerts import CHART
from infra.monitoring.exporters import known_metrics
from infra.spec.monitoring.remote_write import RemoteWrite

SERVICE_ACCOUNT = f"{CHART}-prometheus"
"""Of the release of this name, in the namespace `monitoring`."""


def remote_write(target: RemoteWrite, campaign: str) -> dict[str, Any]:
    """Return a row of the operator's `remoteWrite`.
    https://prometheus-operator.dev/docs/api-reference/api/#monitoring.coreos.com/v1.RemoteWriteSpec"""
    rules: list[dict[str, Any]] = [{"targetLabel": "campaign", "replacement": campaign}]
    if not target.all_series:
        names = "|".join(re.escape(name) for name in sorted(known_metrics()))
        rules.insert(0, {"sourceLabels": ["__name__"], "regex": names, "action": "keep"})
    row: dict[str, Any] = {"url": target.url, "writeRelabelConfigs": rules}
    if target.region is not None:
        row["sigv4"] = {"region": target.region}
    return row


def with_remote_write(chart: str, values: dict[str, Any], target: RemoteWrite | None, campaign: str) -> dict[str, Any]:
    """Return a chart's values with the place to write to, if it is the one that has Prometheus."""
    if chart != CHART or target is None:
        return values
    prometheus = values["prometheus"]
    spec = {**prometheus["prometheusSpec"], "remoteWrite": [remote_write(target, campaign)]}
    return {**values, "prometheus": {**prometheus, "prometheusSpec": spec}}
