"""`bivouac metrics NAME QUERY`: a campaign's series, from Prometheus while the cluster stands, afterwards as kept."""

from __future__ import annotations

import math
import statistics
from datetime import UTC, datetime

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.look.logs import ago
from infra.cli.look.series import KeptSeries, SeriesSource, series_of
from infra.cli.options import stderr
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.monitoring.selection import full_query
from infra.monitoring.series import MetricSeries
from trainer.contract.metrics import DRIVER, METRICS

_OF_DRIVER = tuple(metric.full_name for metric in METRICS if metric.source == DRIVER)
_POINTS, _LEAST_STEP_S = 240, 15.0


def metrics_command(campaign: str, query: str, region: str, since: str | None, as_json: bool, console: Console) -> int:
    """Print the series of a query. Raises `UserError` for a query that is refused, or a campaign without series."""
    length = None if since is None else ago(since)
    with series_of(campaign, region, lambda reason: say(stderr, reason)) as source:
        begin, end, step = window(source, length, full_query(query))
        rows = source.ask(full_query(query), begin, end, step)
    if as_json:
        write_json(console, [_row(row) for row in rows])
        return 0
    if not rows:
        times = f"from {_moment(begin)} to {_moment(end)}"
        say(console, f"no series answers `{query}` {times}; docs/metrics.md has the names")
        return 0
    say(stderr, f"by {source.origin}, a value each {step:.0f} s")
    _show(rows, console)
    return 0


def window(source: SeriesSource, length: float | None, query: str = "") -> tuple[float, float, float]:
    """Return begin, end and step of what is asked for, in seconds: all, or the last `length` before its end. The
    driver's metrics begin and end with the record, all others with their series."""
    whole_begin, end = source.begin, source.end
    if isinstance(source, KeptSeries) and source.driven and any(name in query for name in _OF_DRIVER):
        whole_begin, end = source.driven
    begin = whole_begin if length is None else max(whole_begin, end - length)
    return begin, end, max(_LEAST_STEP_S, math.ceil((end - begin) / _POINTS))


def _show(rows: list[MetricSeries], console: Console) -> None:
    common = set(rows[0].labels.items()).intersection(*(row.labels.items() for row in rows))
    if common:
        say(stderr, "all: " + ", ".join(f"{label}={value}" for label, value in sorted(common)))
    table = Listing("series", ">newest", "at", ">least", ">mean", ">most")
    for row in rows:
        own_labels = sorted(set(row.labels.items()) - common)
        labels = ", ".join(f"{label}={value}" for label, value in own_labels)
        values = [value for _, value in row.points]
        newest_s, newest = row.points[-1]
        figures = (min(values), statistics.fmean(values), max(values))
        table.row(
            " ".join(filter(None, (row.name, labels))) or "value", f"{newest:.6g}", _moment(newest_s),
            *(f"{figure:.6g}" for figure in figures),
        )  # fmt: skip
    table.show(console)


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def _row(row: MetricSeries) -> dict[str, object]:
    """Return a series for machines. JSON has no NaN: such a value is none."""
    points = [[seconds, value if math.isfinite(value) else None] for seconds, value in row.points]
    return {"name": row.name, "labels": dict(row.labels), "points": points}
