"""The report as one HTML file that needs nothing but itself: no script, no font, no image from elsewhere."""

from __future__ import annotations

import math
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from infra.reporting import sentences
from infra.reporting.charts import bars, loss_curve, restarts, timeline
from infra.reporting.model import Report

MOST_EVENTS = 600
MOST_EVALUATIONS = 12


def render(report: Report) -> str:
    environment, template = _page()
    style, _, _ = environment.loader.get_source(environment, "style.css")  # type: ignore[union-attr]
    failures = [row for row in report.interruptions if row.attempt is not None]
    return template.render(
        report=report,
        style=Markup(style),
        timeline=timeline(report) if report.stages else "",
        loss_curve=loss_curve(report),
        restarts=restarts(report),
        bars=bars(report),
        evaluations=sorted(report.training.evaluations, key=lambda row: row.step)[-MOST_EVALUATIONS:],
        happened=report.happened[-MOST_EVENTS:],
        failures=failures,
        none_fatal=all(row.resumed_from is not None for row in failures),
    )


@cache
def _page() -> tuple[Environment, Template]:
    environment = Environment(
        loader=PackageLoader("infra.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clock": lambda seconds: _unbroken(sentences.clock(seconds)),
        "stamp": sentences.stamp,
        "size": lambda count: _unbroken(sentences.size(count)),
        "usd": lambda amount: _unbroken(sentences.usd(amount)),
        "share": lambda part: _unbroken(sentences.share(part)),
        "perplexity": lambda loss: f"{math.exp(min(loss, 50)):,.1f}",
    }
    return environment, environment.get_template("report.html.j2")


def _unbroken(figure: str) -> str:
    """A figure and its unit stay on one line."""
    return figure.replace(" ", "\u00a0")
