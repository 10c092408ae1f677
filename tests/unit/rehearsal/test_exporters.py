"""What a drill lets the exporters of a rehearsal tell, as Prometheus reads it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from infra.plan import catalogue
from infra.rehearsal.kubernetes import exporters
from infra.rehearsal.kubernetes.exporters import Exporters, Words, node_exporter_job
from infra.spec.drills.scenarios import scenarios

NODE, BEFORE_S, LATER_S = "i-1", 5.0, 115.0


class Time:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def told(time: Time, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exporters]:
    monkeypatch.setattr(exporters, "_PORTS", {"dcgm-exporter": 0, "prometheus-node-exporter": 0})
    all_exporters = Exporters("127.0.0.1", time)
    for hand in scenarios()["exporters-alarm"].hands:
        all_exporters.tell(NODE, Words.model_validate(hand.body))
    yield all_exporters
    all_exporters.stop()


def values(text: str) -> dict[str, float]:
    rows = (line.rpartition(" ") for line in text.splitlines())
    return {series.partition("{")[0]: float(value) for series, _, value in rows}


def test_a_gauge_changes_after_a_while_and_a_counter_grows(told: Exporters, time: Time) -> None:
    time.now_s += BEFORE_S
    before = values(told.text("dcgm-exporter"))
    time.now_s += LATER_S - BEFORE_S
    later = values(told.text("dcgm-exporter"))
    assert (before["DCGM_FI_DEV_XID_ERRORS"], later["DCGM_FI_DEV_XID_ERRORS"]) == (0, 94)
    assert later["DCGM_FI_DEV_THERMAL_VIOLATION"] == 200_000_000 * (LATER_S - 15)
    assert f'Hostname="{NODE}"' in told.text("dcgm-exporter")


def test_the_releases_own_jobs_take_them_until_they_are_gone(told: Exporters, time: Time) -> None:
    (release,) = (chart for chart in catalogue.charts() if chart.name == "kube-prometheus-stack")
    (gpus,) = (
        job
        for job in release.values["prometheus"]["prometheusSpec"]["additionalScrapeConfigs"]
        if job["job_name"] == "gpus"
    )
    relabelings = release.values["prometheus-node-exporter"]["prometheus"]["monitor"]["metricRelabelings"]
    jobs = {"dcgm-exporter": gpus, "prometheus-node-exporter": node_exporter_job(relabelings)}
    for target in told.targets():
        labels = target["labels"]
        keeps = [rule for rule in jobs[labels["__meta_kubernetes_pod_label_app_kubernetes_io_name"]]["relabel_configs"]]
        assert all(labels[rule["source_labels"][0]] == rule["regex"] for rule in keeps if rule.get("action") == "keep")
    assert len(list(told.targets())) == 2
    time.now_s += 680
    assert list(told.targets()) == []


def test_it_answers_as_an_exporter_does(told: Exporters) -> None:
    port = told._servers["prometheus-node-exporter"].server_port
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert values(answer.read().decode()).keys() >= {"node_amazonefa_rx_drops", "node_filesystem_readonly"}
