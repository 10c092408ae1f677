"""Series as OpenMetrics text, which is what a record keeps of Prometheus, and as Prometheus' own answers.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
A kept text has no `# EOF`, so that pieces of it join to a text; `END` is written where a reader wants it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from trainer.contract.metrics import METRICS

END = "# EOF\n"
_KINDS = {metric.full_name: (metric.kind, metric.help) for metric in METRICS}
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+) (\S+)\n?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)",?')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
_MEANINGS = {text: character for character, text in _ESCAPES.items()}
_INFINITE = {math.inf: "+Inf", -math.inf: "-Inf"}


class MetricSeries(NamedTuple):
    """One series."""

    name: str
    labels: Mapping[str, str]
    """Without the name."""
    points: list[tuple[float, float]]
    """Seconds since 1970 and value, the oldest first."""


def lines(name: str, rows: Iterable[MetricSeries]) -> Iterator[str]:
    """Yield the text of one metric: its kind and meaning, if it is ours, then each sample with its time."""
    kind, meaning = _KINDS.get(name, ("unknown", ""))
    family = name.removesuffix("_total") if kind == "counter" else name
    yield f"# TYPE {family} {kind}\n"
    if meaning:
        yield f"# HELP {family} {_escaped(meaning)}\n"
    for row in rows:
        labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(row.labels.items()))
        for seconds, value in row.points:
            yield f"{name}{{{labels}}} {_number(value)} {seconds:.3f}\n"


def parse(text: Iterable[str]) -> list[MetricSeries]:
    """Return the series of kept text. Raises `ValueError` for a line that is none of it: a cut file is no whole one."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for line in text:
        if line.startswith("#") or not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None or not line.endswith("\n"):
            raise ValueError(f"a line of the series cannot be read: {line[:80]!r}")
        name, labels, value, seconds = match.groups()
        points.setdefault((name, labels or ""), []).append((float(seconds), float(value)))
    return [MetricSeries(name, _labels(labels), sorted(rows)) for (name, labels), rows in points.items()]


def matrix(body: bytes) -> list[MetricSeries]:
    """Return the series of Prometheus' answer to a query over a range. Raises `ValueError` for another answer.
    https://prometheus.io/docs/prometheus/latest/querying/api/#range-queries"""
    try:
        rows = json.loads(body)["data"]["result"]
        return [
            MetricSeries(
                row["metric"].get("__name__", ""),
                {label: value for label, value in row["metric"].items() if label != "__name__"},
                [(float(seconds), float(value)) for seconds, value in row["values"]],
            )
            for row in rows
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no answer of Prometheus: {body[:200]!r}") from error


def _labels(text: str) -> dict[str, str]:
    return {label: re.sub(r"\\.", _meaning, value) for label, value in _LABEL.findall(text)}


def _meaning(match: re.Match[str]) -> str:
    return _MEANINGS.get(match[0], match[0])


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return _INFINITE.get(value) or repr(value)
