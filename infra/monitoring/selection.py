"""The part of PromQL that needs no Prometheus: one metric, chosen by its labels.

https://prometheus.io/docs/prometheus/latest/querying/basics/#time-series-selectors
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from infra.errors import UserError
from infra.monitoring.series import MetricSeries, parse
from trainer.contract.metrics import METRICS, PREFIX

_SELECTOR = re.compile(r"\s*([a-zA-Z_:][\w:]*)\s*(?:\{([^{}]*)\}\s*)?")
_MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')


class Selection(NamedTuple):
    """A metric and what its labels must be: label, operator, value."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Return whether all matchers hold; a label that is missing is empty."""
        return all(_holds(labels.get(label, ""), operator, value) for label, operator, value in self.matchers)


def full_query(query: str) -> str:
    """Return the query, with the prefix of our metrics if it is only a metric's short name, such as `loss`."""
    match = _SELECTOR.fullmatch(query)
    is_short = match is not None and any(match[1] == metric.name for metric in METRICS)
    return PREFIX + query.strip() if is_short else query


def selection(query: str) -> Selection:
    """Return the selection that a query is. Raises `UserError` for all that is more: it needs a Prometheus."""
    match = _SELECTOR.fullmatch(query)
    inner = "" if match is None else match[2] or ""
    matchers = tuple(_MATCHER.findall(inner))
    if match is None or _MATCHER.sub("", inner).strip():
        raise UserError(
            "without Prometheus only one metric with its labels can be selected",
            seen=query,
            cure="put the programs prometheus and promtool on PATH; or ask such as `loss` or "
            '`bivouac_phase{phase="saving"}`',
        )
    return Selection(match[1], matchers)


def select(query: Selection, text: Iterable[str], begin: float, end: float, step: float) -> list[MetricSeries]:
    """Return the chosen series between two times of kept text, of each step the newest sample. Raises `ValueError` for
    text that is no kept one."""
    rows = parse(line for line in text if line.startswith((query.name + "{", query.name + " ")))
    fits = (row._replace(points=list(_thin(row.points, begin, end, step))) for row in rows if query.fits(row.labels))
    return [row for row in fits if row.points]


def _thin(
    points: Iterable[tuple[float, float]], begin: float, end: float, step: float
) -> Iterator[tuple[float, float]]:
    newest: dict[int, tuple[float, float]] = {}
    for seconds, value in points:
        if begin <= seconds <= end:
            newest[int((seconds - begin) // step)] = (seconds, value)
    yield from newest.values()


def _holds(label: str, operator: str, value: str) -> bool:
    if operator in ("=", "!="):
        return (label == value) is (operator == "=")
    try:
        return (re.fullmatch(value, label) is not None) is (operator == "=~")
    except re.error as error:
        raise UserError("a regular expression cannot be read", seen=value, cure=str(error)) from error
