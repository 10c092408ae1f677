"""docs/metrics.md, from the one definition of the metrics and the alerts."""

from __future__ import annotations

from infra.monitoring.alerts import alerts
from trainer.contract.metrics import METRICS, PLACES

_HEAD = """# Metrics and alerts

Written by `make docs` from `trainer/contract/metrics.py` and `infra/monitoring/alerts.yaml`. Every pod of a gang serves
its supervisor's metrics at `:8471/metrics`, the steward its own at `:8472/metrics`. What a source does not know has no
sample: unknown is not zero.
"""


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for source, labels in PLACES.items():
        parts.append(f"## Of the {source}\n\nEach has the labels {', '.join(f'`{label}`' for label in labels)}.\n")
        rows = ["| metric | unit | kind | of | meaning |", "| --- | --- | --- | --- | --- |"]
        for metric in (metric for metric in METRICS if metric.source == source):
            name = f"`{metric.full_name}`" + (f" by `{metric.label}`" if metric.label else "")
            rows.append(f"| {name} | {metric.unit or '-'} | {metric.kind} | {metric.view} | {metric.help} |")
        parts.append("\n".join(rows) + "\n")
    levels = "*page*: act now; *ticket*: within the day; *note*: an event of the record tells people already."
    parts.append(f"## Alerts\n\nEach has a runbook. {levels}\n")
    rows = ["| alert | severity | quiet beside |", "| --- | --- | --- |"]
    for name, rule in alerts().items():
        rows.append(f"| [{name}](runbooks/{name}.md) | {rule.severity} | {', '.join(rule.quiet_while) or '-'} |")
    parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)
