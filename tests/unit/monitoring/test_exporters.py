"""The lists that other projects' exporters get from ours, and the series that rules record."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.monitoring.alerts import METRIC, rule_groups
from infra.monitoring.exporters import exporters, known_metrics, recordings, with_counters
from tests.unit.monitoring.test_alerts import promtool

SERIES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("recorded.yaml").read_text())


def test_the_gpus_exporter_gets_every_counter_that_is_read_as_lines_that_it_reads() -> None:
    """Its format: a line has three fields, and a text with a comma would be a fourth."""
    values = with_counters("dcgm-exporter", {"affinity": 1})
    rows = list(csv.reader(io.StringIO(values["customMetrics"]), skipinitialspace=True))
    assert values["affinity"] == 1 and all(len(row) == 3 and row[1] in ("gauge", "counter") for row in rows)
    names = [name for name, _, _ in rows]
    assert len(names) == len(set(names)) and set(names) >= exporters()["dcgm-exporter"].metrics.keys()
    assert {"DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"} <= set(names)
    assert with_counters("jobset", {"a": 1}) == {"a": 1}


def test_each_recorded_series_reads_metrics_that_there_are() -> None:
    for name, rule in recordings().items():
        assert METRIC.fullmatch(name) and set(METRIC.findall(rule.expr)) <= set(known_metrics()), name


@pytest.mark.parametrize("name", recordings())
def test_what_a_rule_records_is_its_value_by_hand(name: str, tmp_path: Path) -> None:
    row = SERIES[name]
    series = [{"series": series, "values": values} for series, values in row["series"].items()]
    wanted = [{"labels": f'{name}{{campaign="c"}}', "value": row["value"]}]
    test = {"interval": "15s", "input_series": series, "promql_expr_test": [
        {"expr": name, "eval_time": f"{row['at']}s", "exp_samples": wanted}]}  # fmt: skip
    (tmp_path / "rules.yaml").write_text(json.dumps(rule_groups()))
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": [test]}
    (tmp_path / "test.yaml").write_text(json.dumps(document))
    answer = promtool("test", "rules", tmp_path / "test.yaml")
    assert answer.returncode == 0, answer.stdout + answer.stderr
