"""Each alert fires on its series and not before, by Prometheus' own promtool; each has a runbook."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.folders import tools_dir
from infra.monitoring.alerts import RUNBOOKS, alertmanager_config, alerts, rule_groups
from tests.root import ROOT
from trainer.contract.metrics import METRICS, PLACES, STEWARD, SUPERVISOR, exposition

SERIES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("series.yaml").read_text())


def seconds_of(moments: int | list[int]) -> list[int]:
    return moments if isinstance(moments, list) else [moments]


def promtool(*arguments: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    argv = [str(tools_dir() / "promtool"), *map(str, arguments)]
    return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=300)


def test_each_alert_has_series_and_each_of_these_is_an_alert() -> None:
    assert SERIES.keys() == alerts().keys()


def test_each_alert_has_fired_in_a_drill_whose_row_is_kept() -> None:
    rows = [line.split("|") for line in (ROOT / "docs/drills.md").read_text().splitlines() if line.startswith("| ")]
    fired = {cells[1].strip() for cells in rows if cells[2].strip() in ("page", "ticket", "note")}
    assert alerts().keys() <= fired


def test_all_alerts_fire_on_their_series_and_stay_quiet_before(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(json.dumps(rule_groups()))
    tests = []
    for name, row in SERIES.items():
        series = [{"series": series, "values": values} for series, values in row["series"].items()]
        moments = {at: count for count, key in enumerate(("quiet_at", "fires_at")) for at in seconds_of(row[key])}
        query = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
        looks = [
            {"expr": query, "eval_time": f"{at}s", "exp_samples": [{"labels": "{}", "value": count}]}
            for at, count in moments.items()
        ]
        tests.append({"name": name, "interval": "15s", "input_series": series, "promql_expr_test": looks})
    # One program for all: it starts for as long as it looks at ten alerts.
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": tests}
    (tmp_path / "test.yaml").write_text(json.dumps(document))
    answer = promtool("test", "rules", tmp_path / "test.yaml")
    assert answer.returncode == 0, answer.stdout[-6000:] + answer.stderr[-6000:]


@pytest.mark.parametrize("name", [name for name, row in SERIES.items() if "summary" in row])
def test_what_people_read_has_the_value(name: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(json.dumps(rule_groups()))
    row, rule = SERIES[name], alerts()[name]
    series = [{"series": series, "values": values} for series, values in row["series"].items()]
    labels = {"severity": rule.severity, **row.get("labels", {"campaign": "c"})}
    if name == "PodSilent":
        labels["pod"] = "a-0"
    if name == "SourceUnseen":
        labels["source"] = "cluster"
    wanted = {"exp_labels": labels, "exp_annotations": {
        "summary": row["summary"], "runbook_url": f"{RUNBOOKS}/{name}.md"}}  # fmt: skip
    test = {"interval": "15s", "input_series": series, "alert_rule_test": [
        {"alertname": name, "eval_time": f"{seconds_of(row['fires_at'])[0]}s", "exp_alerts": [wanted]}]}  # fmt: skip
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": [test]}
    (tmp_path / "test.yaml").write_text(json.dumps(document))
    answer = promtool("test", "rules", tmp_path / "test.yaml")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_an_alert_is_quiet_beside_what_says_the_same() -> None:
    pairs = {
        (rule["source_matchers"][0], rule["target_matchers"][0]) for rule in alertmanager_config()["inhibit_rules"]
    }
    assert ('alertname="PodSilent"', 'alertname="AttemptFailed"') in pairs


def test_the_charts_own_routes_do_not_stay_to_a_receiver_that_is_gone() -> None:
    """Helm merges maps and replaces lists: what the chart has as a list, and we do not, would stay."""
    config = alertmanager_config()
    assert config["route"]["routes"] == [] and [row["name"] for row in config["receivers"]] == ["steward"]


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    assert {path.stem for path in (ROOT / RUNBOOKS).glob("*.md")} == alerts().keys()


def facts(source: str) -> dict[str, Any]:
    """A value for each metric of a source."""
    tree: dict[str, Any] = {}
    for place_in_table, metric in enumerate(METRICS, 1):
        if metric.source == source:
            number = min(place_in_table, metric.most)
            *parents, last = metric.field.split(".")
            place = tree
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = {'a"b\\c\n': number} if metric.label else number
    return tree


@pytest.mark.parametrize("source", [SUPERVISOR, STEWARD])
def test_each_metric_is_exported_as_prometheus_reads_it(source: str) -> None:
    text = exposition(source, facts(source), dict.fromkeys(PLACES[source], "x"))
    names = {metric.full_name for metric in METRICS if metric.source == source}
    assert {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")} == names
    answer = promtool("check", "metrics", text=text)
    complaints = [line for line in answer.stderr.splitlines() if "parse" in line or "invalid" in line.lower()]
    assert not complaints and answer.returncode in (0, 3), answer.stderr  # 3: of style


def test_what_is_unknown_is_no_sample() -> None:
    assert exposition(SUPERVISOR, {"step": None, "figures": None}, {"campaign": "c", "attempt": 1, "node": "n"}) == "\n"
