"""`bivouac metrics NAME [QUERY]`: a campaign's series, from Prometheus while the cluster stands, afterwards as kept."""

from __future__ import annotations

import math
import statistics
from datetime import UTC, datetime

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.look.logs import ago
from infra.cli.look.series import SeriesSource, series_of
from infra.cli.options import stderr
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.monitoring.exporters import exporters
from infra.monitoring.selection import full_query
from infra.monitoring.series import MetricSeries
from trainer.contract.metrics import METRICS

_POINTS, _LEAST_STEP_S = 240, 15.0
_MOST_ROWS = 200
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24


def metrics_command(
    campaign: str, query: str | None, region: str, since: str | None, as_json: bool, console: Console
) -> int:
    """Print the series of a query, or without one the metrics that there are. Raises `UserError` for a query that is
    refused, or a campaign without series."""
    if query is None:
        return _list(as_json, console)
    length = None if since is None else ago(since)
    with series_of(campaign, region, lambda reason: say(stderr, reason)) as source:
        begin, end, step = window(source, length)
        rows = source.ask(full_query(query), begin, end, step)
    if as_json:
        write_json(console, [_row(row) for row in rows])
        return 0
    if not rows:
        times = f"from {_moment(begin)} to {_moment(end)}"
        say(console, f"no series answers `{query}` {times}; `bivouac metrics {campaign}` lists the metrics")
        return 0
    say(stderr, f"by {source.origin}, a value each {step:.0f} s")
    _show(rows, console)
    return 0


def window(source: SeriesSource, length: float | None) -> tuple[float, float, float]:
    """Return begin, end and step of what is asked for, in seconds: all, or the last `length` before its end."""
    end = source.end
    begin = source.begin if length is None else max(source.begin, end - length)
    return begin, end, max(_LEAST_STEP_S, math.ceil((end - begin) / _POINTS))


def _list(as_json: bool, console: Console) -> int:
    rows = [(metric.full_name, metric.unit, metric.label, metric.help) for metric in METRICS]
    rows += [
        (name, metric.unit, ", ".join(exporter.labels), metric.help)
        for exporter in exporters().values()
        for name, metric in exporter.metrics.items()
    ]
    if as_json:
        write_json(console, [{"name": row[0], "unit": row[1], "by": row[2], "help": row[3]} for row in rows])
        return 0
    table = Listing("metric", "unit", "by", "~meaning")
    for row in rows:
        table.row(*row)
    table.show(console)
    return 0


def _show(rows: list[MetricSeries], console: Console) -> None:
    common = set(rows[0].labels.items()).intersection(*(row.labels.items() for row in rows))
    if common:
        say(stderr, "all: " + ", ".join(f"{label}={value}" for label, value in sorted(common)))
    table = Listing("series", ">newest", "at", ">least", ">mean", ">most", "course")
    for row in rows[:_MOST_ROWS]:
        own_labels = sorted(set(row.labels.items()) - common)
        labels = ", ".join(f"{label}={value}" for label, value in own_labels)
        values = [value for _, value in row.points]
        at, newest = row.points[-1]
        figures = (min(values), statistics.fmean(values), max(values))
        table.row(
            " ".join(filter(None, (row.name, labels))) or "value", f"{newest:.6g}", _moment(at),
            *(f"{figure:.6g}" for figure in figures), course(values),
        )  # fmt: skip
    table.show(console)
    if len(rows) > _MOST_ROWS:
        say(console, f"{len(rows) - _MOST_ROWS} more series; choose by labels, or give --json")


def course(values: list[float]) -> str:
    """Return values as a line of bars from the least to the most, a dot for what is no number."""
    size = math.ceil(len(values) / _WIDTH)
    means = [statistics.fmean(values[start : start + size]) for start in range(0, len(values), size)]
    finite = [mean for mean in means if math.isfinite(mean)]
    least, most = min(finite, default=0.0), max(finite, default=0.0)
    height = (len(_BARS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BARS[round((mean - least) * height)] if math.isfinite(mean) else "·" for mean in means)


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _row(row: MetricSeries) -> dict[str, object]:
    """Return a series for machines. JSON has no NaN: such a value is none."""
    points = [[at, value if math.isfinite(value) else None] for at, value in row.points]
    return {"name": row.name, "labels": dict(row.labels), "points": points}
