"""FSx's figures of the file system: the newest minute of each, and none where nobody could ask."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from infra.clock import Clock
from infra.errors import LeaseLost
from infra.record.payloads.training import FileSystemLost
from infra.record.state import CampaignState
from infra.steward.monitoring.exporter import Exporter
from infra.steward.monitoring.file_system import FileSystemFigures
from tests.unit.steward.monitoring.test_exporter import lines, view
from tests.worlds.s3 import Time

TARGET = "target_free_bytes"


class CloudWatch:
    """Answers by metric and statistic, the newest first; `away`: it cannot be reached."""

    def __init__(self) -> None:
        self.values = {
            ("DataReadBytes", "Sum"): [600.0, 60.0], ("DataWriteBytes", "Sum"): [],
            ("MetadataOperations", "Sum"): [30.0],
            ("FreeDataStorageCapacity", "Sum"): [100.0], ("FreeDataStorageCapacity", "Minimum"): [7.0],
        }  # fmt: skip
        self.away = False
        self.asked = list[dict[str, Any]]()

    def get_paginator(self, operation: str) -> SimpleNamespace:
        assert operation == "get_metric_data"
        return SimpleNamespace(paginate=self.pages)

    def pages(self, **request: Any) -> list[dict[str, Any]]:
        """Two pages, the older one with other values."""
        self.asked.append(request)
        if self.away:
            raise EndpointConnectionError(endpoint_url="https://monitoring")
        rows = [(row["Id"], row["MetricStat"]) for row in request["MetricDataQueries"]]
        values = [(id, self.values[stat["Metric"]["MetricName"], stat["Stat"]]) for id, stat in rows]
        older = [{"Id": id, "Values": [999.0] if points else []} for id, points in values]
        return [
            {"MetricDataResults": [{"Id": id, "Values": points} for id, points in values]},
            {"MetricDataResults": older},
        ]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def cloud_watch() -> CloudWatch:
    return CloudWatch()


class Record:
    """What the campaign's record says, and whether the lease is this steward's."""

    def __init__(self) -> None:
        self.state, self.is_ours = CampaignState(file_system="fs-1"), True

    def check(self) -> None:
        if not self.is_ours:
            raise LeaseLost("the steward lease is lost", seen="another")


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def figures(time: Time, cloud_watch: CloudWatch, record: Record) -> FileSystemFigures:
    account: Any = SimpleNamespace(client=lambda service: cloud_watch)
    return FileSystemFigures(account, record.check, lambda: record.state, Clock(time, time.wall))


def test_a_count_of_a_minute_becomes_a_rate_and_what_was_not_told_is_left_out(
    figures: FileSystemFigures, cloud_watch: CloudWatch, time: Time
) -> None:
    assert figures.facts() == {}
    figures.look()
    assert figures.facts() == {"read_bytes_s": 10.0, "metadata_s": 0.5, "free_bytes": 100.0, TARGET: 7.0}
    (request,) = cloud_watch.asked
    metrics = [row["MetricStat"]["Metric"] for row in request["MetricDataQueries"]]
    assert all(metric["Dimensions"] == [{"Name": "FileSystemId", "Value": "fs-1"}] for metric in metrics)
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))
    exporter.note(view(), 100.0, 1, 0.1, timedelta(minutes=10), {"file_system": figures.facts()})
    exported = {name: value for name, value in lines(exporter).items() if "file_system" in name}
    assert exported == {
        "bivouac_file_system_read_bytes_per_second": 10.0,
        "bivouac_file_system_metadata_operations_per_second": 0.5,
        "bivouac_file_system_free_bytes": 100.0,
        "bivouac_file_system_target_free_bytes": 7.0,
    }


def test_figures_that_nobody_could_renew_stay_ten_minutes_and_then_nothing_is_known(
    figures: FileSystemFigures, cloud_watch: CloudWatch, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    figures.look()
    cloud_watch.away = True
    time.go(599)
    for _ in range(3):
        figures.look()
    assert figures.facts()[TARGET] == 7.0
    time.go(1)
    assert figures.facts() == {}
    assert [record.getMessage() for record in caplog.records] == [
        'CloudWatch tells nothing of the file system: Could not connect to the endpoint URL: "https://monitoring"'
    ], "said once"
    cloud_watch.away = False
    figures.look()
    assert figures.facts()[TARGET] == 7.0


def test_a_minute_that_is_not_over_everywhere_is_not_asked_for(
    figures: FileSystemFigures, cloud_watch: CloudWatch, time: Time
) -> None:
    time.go(59.5)
    figures.look()
    (request,) = cloud_watch.asked
    assert request["EndTime"] == time.wall().replace(second=0, microsecond=0) - timedelta(minutes=1)
    assert request["EndTime"] - request["StartTime"] == timedelta(minutes=10)


def test_of_a_file_system_that_is_lost_nothing_is_known_until_its_successor_is_there(
    figures: FileSystemFigures, cloud_watch: CloudWatch, record: Record
) -> None:
    figures.look()
    loss = FileSystemLost(id="fs-1", word="was deleted", why="somebody did", repair=True)
    record.state = record.state.model_copy(update={"lost": loss})
    figures.look()
    assert figures.facts() == {} and len(cloud_watch.asked) == 1
    record.state = CampaignState(file_system="fs-2")
    figures.look()
    assert figures.facts()[TARGET] == 7.0
    query = cloud_watch.asked[-1]["MetricDataQueries"][0]["MetricStat"]["Metric"]
    assert query["Dimensions"] == [{"Name": "FileSystemId", "Value": "fs-2"}]


def test_a_steward_that_is_none_any_more_asks_nothing(
    figures: FileSystemFigures, cloud_watch: CloudWatch, record: Record
) -> None:
    record.is_ours = False
    with pytest.raises(LeaseLost):
        figures.look()
    assert not cloud_watch.asked
