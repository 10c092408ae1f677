"""Each query of each panel returns series from a real Prometheus that has every metric."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.folders import tools_dir
from infra.monitoring import dashboards as module
from infra.monitoring.dashboards import Panel, dashboards, grafana_json, with_dashboards
from infra.monitoring.exporters import exporters, recordings
from infra.monitoring.prometheus import PROGRAMS, over_text, range_path
from trainer.contract.metrics import METRICS, PLACES

NOW = 1_764_187_200
PANELS = [(name, panel) for name, board in dashboards().items() for panel in board.panels]
QUERIES = [(panel, query) for _, panel in PANELS for query in panel.queries]


def samples() -> Iterator[str]:
    """Five minutes of every metric, rising, in this test's own OpenMetrics."""
    rows = {metric.full_name: [*PLACES[metric.source], *filter(None, [metric.label])] for metric in METRICS}
    rows |= {name: [*exporter.labels] for exporter in exporters().values() for name in exporter.metrics}
    rows |= {name: ["campaign"] for name in recordings()}
    # Panels count two causes, and one of them disks whose names begin so.
    own = {"cause": ["dip", "useful"], "device": ["nvme1n1"]}
    for name, labels in rows.items():
        for values in itertools.product(*(own.get(label, [f"{label}-x"]) for label in labels)):
            text = ",".join(f'{label}="{value}"' for label, value in zip(labels, values, strict=True))
            for number in range(21):
                value = 1 if name == "bivouac_phase" else number + 1
                yield f"{name}{{{text}}} {value} {NOW + 15 * number}\n"


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Callable[[str], tuple[int, bytes]]]:
    with over_text(samples(), {name: tools_dir() / name for name in PROGRAMS}) as get:
        yield get


@pytest.mark.parametrize(("panel", "query"), QUERIES, ids=[query for _, query in QUERIES])
def test_each_query_of_a_panel_returns_series_whose_labels_its_legend_names(
    panel: Panel, query: str, prometheus: Callable[[str], tuple[int, bytes]]
) -> None:
    code, body = prometheus(range_path(query, NOW + 240, NOW + 300, 15))
    rows = json.loads(body)["data"]["result"]
    assert code == 200 and rows, body
    wanted = set(re.findall(r"{{(\w+)}}", panel.queries[query])) - {"instance"}  # which a scrape adds
    assert all(row["metric"].keys() >= wanted for row in rows)
    assert all(float(value) == float(value) for row in rows for _, value in row["values"]), "a number"


def test_a_page_of_a_browser_neither_finds_prometheus_nor_reads_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, popen = list[list[str]](), subprocess.Popen

    def start(line: list[str], **settings: Any) -> Any:
        lines.append(line)
        return popen(line, **settings)

    monkeypatch.setattr("infra.monitoring.prometheus.subprocess.Popen", start)
    with over_text(["up 1 1764187200\n"], {name: tools_dir() / name for name in PROGRAMS}) as get:
        (line,) = (line for line in lines if "promtool" not in line[0])
        listener = next(word.partition("=")[2] for word in line if word.startswith("--web.listen-address"))
        assert get(range_path("up", NOW, NOW + 60, 15))[0] == 200 and listener.startswith("127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{listener}/api/v1/query?query=up", timeout=60)
        prefix = next(word.partition("=")[2] for word in line if word.startswith("--web.route-prefix"))
        question = urllib.request.Request(f"http://{listener}{prefix}/api/v1/query?query=up")
        question.add_header("Origin", "https://example.com")
        with urllib.request.urlopen(question, timeout=60) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] is None


def test_a_prometheus_without_series_returns_none() -> None:
    """Else the test above would show nothing."""
    with over_text(["up 1 1764187200\n"], {name: tools_dir() / name for name in PROGRAMS}) as get:
        for _, query in QUERIES:
            assert json.loads(get(range_path(query, NOW, NOW + 60, 15))[1])["data"]["result"] == [], query


def test_each_metric_is_on_a_dashboard() -> None:
    read = {name for _, panel in PANELS for name in panel.metrics()}
    assert {metric.full_name for metric in METRICS} - read == set()
    assert {name for exporter in exporters().values() for name in exporter.metrics} - read == set()


def test_a_panel_of_other_metrics_names_their_exporter() -> None:
    of = {name: exporter for exporter, row in exporters().items() for name in row.metrics}
    for _, panel in PANELS:
        assert {of.get(name, "") for name in panel.metrics()} == {panel.of}, panel.title


def test_a_panel_that_reads_an_unknown_metric_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for panel in ({"title": "x", "queries": {"bivouac_nothing": "y"}}, {"title": "x", "queries": {"vector(1)": "y"}},
                  {"title": "x", "queries": {"bivouac_loss": "y"}, "of": "nobody"}):  # fmt: skip
        table = {"run": {"title": "Run", "panels": [panel]}}
        monkeypatch.setattr(module, "table", lambda package, name, table=table: table)
        with pytest.raises(ValueError, match="'x' of run"):
            dashboards.__wrapped__()


@pytest.mark.parametrize("name", dashboards())
def test_grafana_gets_each_panel_once_on_its_grid_with_all_its_queries(name: str) -> None:
    document, board = json.loads(json.dumps(grafana_json(name))), dashboards()[name]
    assert document["uid"] == f"bivouac-{name}" and len(document["uid"]) <= 40
    assert [panel["title"] for panel in document["panels"]] == [panel.title for panel in board.panels]
    squares = {
        (x, y)
        for panel in document["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }
    assert len(squares) == 96 * len(board.panels) and max(x for x, _ in squares) == 23, "none lies over another"
    for panel, own in zip(document["panels"], board.panels, strict=True):
        assert {target["expr"]: target["legendFormat"] for target in panel["targets"]} == dict(own.queries)
        assert len({target["refId"] for target in panel["targets"]}) == len(own.queries)
        assert panel["fieldConfig"]["defaults"].get("min") == (0 if own.zero else None)
    (variable,) = document["templating"]["list"]
    assert all(
        target["datasource"]["uid"] == f"${{{variable['name']}}}" for p in document["panels"] for target in p["targets"]
    )


def test_grafana_is_in_the_charts_values_only_where_it_is_wanted() -> None:
    values = {"grafana": {"service": {"type": "ClusterIP"}}, "prometheus": {}}
    assert with_dashboards("jobset", values, grafana=True) == values
    off = with_dashboards("kube-prometheus-stack", values, grafana=False)
    assert off["grafana"] == {"service": {"type": "ClusterIP"}, "enabled": False} and off["prometheus"] == {}
    on = with_dashboards("kube-prometheus-stack", values, grafana=True)["grafana"]
    assert on["enabled"] and {name: json.loads(row["json"]) for name, row in on["dashboards"]["bivouac"].items()} == {
        name: grafana_json(name) for name in dashboards()
    }
    (provider,) = on["dashboardProviders"]["dashboardproviders.yaml"]["providers"]
    assert provider["options"]["path"].rpartition("/")[2] == next(iter(on["dashboards"])) == provider["name"]
