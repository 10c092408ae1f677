"""The alerts, as the rules of Prometheus and Alertmanager that the chart installs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import Field

from infra.monitoring.exporters import known_metrics, recordings
from infra.tables import table
from trainer.contract.frozen import Frozen

CHART = "kube-prometheus-stack"
RUNBOOKS = "docs/runbooks"
HEARTBEAT = "Heartbeat"
"""Fires always: without it, no alert is not the same as all well."""
METRIC = re.compile(r"\b(?:(?:bivouac|DCGM|node)_[A-Za-z0-9_]+|bivouac:[a-z0-9_:]+)")
"""A metric's name in PromQL: ours, one of another exporter that is read, or a recorded one."""


class AlertRule(Frozen):
    """One alert. `means`, `look`, `act`, `nothing` are its runbook."""

    expr: str
    holds: str = Field(default="0s", alias="for")
    """How long `expr` must hold, as Prometheus writes durations."""
    severity: Literal["page", "ticket", "note"]
    summary: str
    """One line for people; may hold Prometheus' templates."""
    means: str
    look: tuple[str, ...]
    """Commands that show more; NAME is the campaign."""
    act: str
    nothing: str
    """When nobody needs to act."""
    quiet_while: tuple[str, ...] = ()
    """Alerts beside which this one says nothing new."""

    def metrics(self) -> set[str]:
        """Return the names of the metrics that the expression reads."""
        return set(METRIC.findall(self.expr))


@cache
def alerts() -> Mapping[str, AlertRule]:
    """Return the alerts by name. Raises `ValueError` for one that reads a metric, or names an alert, that is none."""
    rows = table("infra.monitoring", "alerts")["alerts"]
    rules = {name: AlertRule.model_validate(row) for name, row in rows.items()}
    for name, rule in rules.items():
        if unknown := rule.metrics() - set(known_metrics()) | set(rule.quiet_while) - rules.keys():
            raise ValueError(f"alert {name} names what is not there: {', '.join(sorted(unknown))}")
    return rules


def rule_groups() -> dict[str, Any]:
    """Return the content of a rule file of Prometheus.
    https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/"""
    rows: list[dict[str, Any]] = [{"record": name, "expr": rule.expr} for name, rule in recordings().items()]
    rows += [
        {
            "alert": name,
            "expr": rule.expr,
            "for": rule.holds,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary, "runbook_url": f"{RUNBOOKS}/{name}.md"},
        }
        for name, rule in alerts().items()
    ]
    rows.append({"alert": HEARTBEAT, "expr": "vector(1)", "labels": {"severity": "none"}})
    return {"groups": [{"name": "bivouac", "rules": rows}]}


def alertmanager_config() -> dict[str, Any]:
    """Return Alertmanager's configuration: it groups and inhibits; the steward takes the alerts over, and tells people.
    https://prometheus.io/docs/alerting/latest/configuration/"""
    return {
        "route": {
            "receiver": "steward",
            "group_by": ["alertname", "campaign"],
            "group_wait": "0s",
            "group_interval": "5s",
            "repeat_interval": "4h",
            "routes": [],  # else the chart's own stays, to a receiver that is not here
        },
        "receivers": [{"name": "steward"}],
        "inhibit_rules": [
            {
                "source_matchers": [f'alertname="{source}"'],
                "target_matchers": [f'alertname="{name}"'],  # a cluster has one campaign: no label need be equal
            }
            for name, rule in alerts().items()
            for source in rule.quiet_while
        ],
    }


def with_alerts(chart: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a chart's values with the alerts, if it is the one that has Prometheus and Alertmanager."""
    if chart != CHART:
        return values
    alertmanager = {**values.get("alertmanager", {}), "config": alertmanager_config()}
    return {**values, "alertmanager": alertmanager, "additionalPrometheusRulesMap": {"bivouac": rule_groups()}}


def _within_sentence(text: str) -> str:
    """Return a sentence with a small first letter, unless its first word is an abbreviation such as AWS."""
    return text if text[:2].isalpha() and text[:2].isupper() else text[0].lower() + text[1:]


def runbook(name: str, rule: AlertRule) -> str:
    """Return the page of an alert's runbook."""
    summary = re.sub("{{[^}]*}}", "…", rule.summary)
    paragraphs = (
        f"Severity: {rule.severity}. {summary[0].upper()}{summary[1:]}.",
        f"**It means.** {rule.means}",
        "**Look at:**",
        "```sh\n{}\n```".format("\n".join(rule.look)),
        f"**Do.** {rule.act}",
        f"**Do nothing when:** {_within_sentence(rule.nothing)}",
        f"**The rule**, which must hold for {rule.holds}:",
        "```\n" + re.sub(r" (or|unless|and) ", r"\n\1 ", rule.expr) + "\n```",
    )
    wrapped_texts = (text if text.startswith("```") else textwrap.fill(text, 120) for text in paragraphs)
    return f"# {name}\n\n" + "\n\n".join(wrapped_texts) + "\n"
