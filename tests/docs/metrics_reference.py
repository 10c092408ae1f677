"""docs/metrics.md, from the one definition of the metrics and the alerts."""

from __future__ import annotations

from infra.monitoring.alerts import alerts
from infra.monitoring.exporters import exporters, recordings
from trainer.contract.metrics import METRICS, PLACES

_HEAD = """# Metrics and alerts

Written by `make docs` from `trainer/contract/metrics.py` and `infra/monitoring/alerts.yaml`. Every pod of a gang serves
its supervisor's metrics at `:8471/metrics`, the steward its own at `:8472/metrics`. What a source does not know has no
sample: unknown is not zero.

## Read them

`bivouac metrics NAME QUERY` answers PromQL, or a metric's short name such as `loss`; `--since 2h` takes the last of it,
`--json` gives each point. While the cluster stands, its Prometheus answers through the API server. It ends with the
cluster, so the steward writes the series into the record, a quarter of an hour at a time, a sample each 15 s (each 60 s
or 300 s where a piece would pass 1 MiB), and all up to now before it archives. From then on the same command reads:

1. the record's pieces, `series/BEGIN-END.om.gz` (seconds since 1970): OpenMetrics text, compressed;
2. without the account or the rehearsal's site, `series.om.gz` in the results folder, which the report writes.

The archive has the same file as `record/series.om.gz`. Where the programs `prometheus` and `promtool` are on PATH, or
among a rehearsal's tools, a real Prometheus on loopback answers over them; without, one metric with its labels can be
selected, and a function is refused. What could not be kept is an event of the record, `series.unkept`. The driver
works before and after the cluster: of its stages the record's events tell, from the campaign's first to its last
(`bivouac metrics NAME stage_seconds_total`). By hand:

```sh
(zcat series.om.gz; echo "# EOF") > series.om
promtool tsdb create-blocks-from openmetrics series.om data
prometheus --config.file=/dev/null --storage.tsdb.path=data --storage.tsdb.retention.time=100y
```

## See them

`bivouac dashboard NAME` serves the dashboards of `infra/monitoring/dashboards.yaml` (run, ranks, infrastructure,
checkpoints, money) on 127.0.0.1, from the same series, until Ctrl-C. Without `prometheus` and `promtool`, a panel of
kept series says that it needs them. `bivouac dashboard --grafana FOLDER` writes the same panels for Grafana, which asks
for its Prometheus; `addons.grafana: true` brings Grafana into the cluster with them.

Without a name, `bivouac dashboard` draws campaigns side by side, each from its own begin: goodput, money, attempts and
restarts, throughput, loss, and a table of what each had at its end. It takes those whose series are kept in the results
folder or in the account's records. Grafana compares campaigns that write to one Prometheus, such as by
`addons.remote_write`, on the dashboard `bivouac-campaigns`.
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
    parts.append(
        "## Recorded\n\nPrometheus computes these by `infra/monitoring/recordings.yaml`, each by `campaign`.\n"
    )
    rows = ["| series | unit | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | {rule.unit or '-'} | {rule.help} |" for name, rule in recordings().items()]
    parts.append("\n".join(rows) + "\n")
    parts.append("## Of other projects\n\nAlerts and dashboards read these where the exporter is installed.\n")
    for exporter_name, exporter in exporters().items():
        label_names = ", ".join(f"`{label}`" for label in exporter.labels)
        parts.append(f"By {label_names}, of [{exporter_name}][]:\n\n[{exporter_name}]:\n  {exporter.source}\n")
        rows = ["| metric | unit | kind | meaning |", "| --- | --- | --- | --- |"]
        for name, exported in exporter.metrics.items():
            rows.append(f"| `{name}` | {exported.unit or '-'} | {exported.kind} | {exported.help} |")
        parts.append("\n".join(rows) + "\n")
    levels = "*page*: act now; *ticket*: within the day; *note*: an event of the record tells people already."
    parts.append(f"## Alerts\n\nEach has a runbook. {levels}\n")
    rows = ["| alert | severity | quiet beside |", "| --- | --- | --- |"]
    for name, rule in alerts().items():
        rows.append(f"| [{name}](runbooks/{name}.md) | {rule.severity} | {', '.join(rule.quiet_while) or '-'} |")
    parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)
