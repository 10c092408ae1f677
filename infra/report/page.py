"""The report as one self-contained HTML file, without scripts, fonts or images from elsewhere."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from infra.console import words
from infra.report.causes import TimeCause
from infra.report.charts import bars, loss_curve, norm_curve, restarts, timeline
from infra.report.charts.losses import MOST_SENTENCES
from infra.report.model import Report

if TYPE_CHECKING:
    from jinja2 import Environment, Template

REFRESH_S = 60
"""Between two loads of the page of a campaign that has no certificate yet."""
MOST_EVENTS = 300
MOST_EVALUATIONS = 12
MOST_ALARMS = 40
MOST_INTERRUPTIONS = 60


def render(report: Report) -> str:
    environment, template = _page()
    style, _, _ = environment.loader.get_source(environment, "style.css")  # type: ignore[union-attr]
    decisions = [row for row in report.happened if row.kind == "decision"]
    losses = report.training.losses
    return template.render(
        report=report,
        style=Markup(style),
        refresh_s=REFRESH_S,
        timeline=timeline(report) if report.stages else "",
        loss_curve=loss_curve(report),
        norm_curve=norm_curve(report),
        alarms=report.training.alarms[-MOST_ALARMS:],
        restarts=restarts(report),
        restarted=sum(any(point.repeated for point in series.points) for series in losses),
        repeats=report.training.repeats,
        drawn=sum(len(series.points) for series in losses),
        counted=sum(series.steps for series in losses),
        bars=bars(report),
        evaluations=sorted(report.training.evaluations, key=lambda row: row.step)[-MOST_EVALUATIONS:],
        interruptions_shown=report.interruptions[-MOST_INTERRUPTIONS:],
        begun_at=report.begun_at,
        lost_s=sum(row.seconds or 0.0 for row in report.interruptions),
        lost_usd=sum((row.usd or Decimal(0) for row in report.interruptions), Decimal(0)),
        restart_words=len(losses) <= MOST_SENTENCES,
        refused=any(mark.kind == "refused" for mark in report.marks),
        useful_s=next((row.seconds for row in report.shares if row.cause is TimeCause.USEFUL), 0.0),
        kept_usd=sum((row.usd_per_month or Decimal(0) for row in report.money.kept), Decimal(0)),
        torn_down=any(row.stage == "teardown" and row.ending == "finished" for row in report.stages),
        decisions=decisions[-MOST_EVENTS:],
        decisions_count=len(decisions),
        happened=report.happened[-MOST_EVENTS:],
    )


def new_environment() -> Environment:
    """Return the environment of this package's templates, which escape whatever they are given."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # late: `status` reads records but renders no page

    return Environment(
        loader=PackageLoader("infra.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _page() -> tuple[Environment, Template]:
    environment = new_environment()
    environment.filters |= {
        "clock": lambda seconds: _unbroken(words.clock(seconds)),
        "stamp": words.stamp,
        "moment": words.moment,
        "after": _moment_after,
        "size": lambda count: _unbroken(words.size(count)),
        "usd": lambda amount: _unbroken(words.usd(amount)),
        "fine": words.fine,
        "signed": lambda amount: words.fine(amount, sign=True),
        "share": lambda part: _unbroken(words.share(part)),
        "perplexity": lambda loss: f"{math.exp(min(loss, 50)):,.1f}",
        "code": code_marked,
    }
    return environment, environment.get_template("report.html.j2")


def _moment_after(begun_at: datetime, seconds: float) -> str:
    return words.moment(begun_at + timedelta(seconds=seconds))


def _unbroken(figure: str) -> str:
    """Keep a figure and its unit on one line."""
    return figure.replace(" ", "\u00a0")


def code_marked(sentence: str) -> Markup:
    """Set text between backticks in fixed width."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(sentence))))
