"""What FSx for Lustre tells CloudWatch, which answers `GetMetricData` of nothing else.

Of a minute that is not over only some targets have told yet, so that sums are too small. Room is the capacity less what
lies in the folder. Of the traffic only growth shows: who reads or writes a folder of this machine is counted by nobody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from moto.cloudwatch.responses import CloudWatchResponse

from infra.rehearsal.aws.operations import Parameters, add_operations
from infra.rehearsal.aws.world import World
from infra.spec.names import CAMPAIGN_TAG

_GIB, _TARGET_GIB = 2**30, 1200
"""The storage target of an SSD file system."""
_LEAST_S = 1.0


class Figures:
    def __init__(self, world: World) -> None:
        self._world = world
        self._earlier = dict[str, tuple[float, int]]()
        """File system -> when it was looked at, and the bytes that it had."""
        self._fullest = dict[str, float]()
        """File system -> bytes that its fullest storage target has left, where a drill said it."""

    def fill_target(self, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Let one storage target of a campaign's file systems have `free` bytes left, or as much as each has without
        it; 404 if there is no file system. Writes go on: the folder of this machine has no targets."""
        words, backend = dict(parse_qsl(query)), self._world.backend("fsx")
        systems = [
            id
            for id, file_system in backend.file_systems.items()
            if backend.tagger.get_tag_dict_for_resource(file_system.resource_arn).get(CAMPAIGN_TAG) == words["campaign"]
        ]
        for id in systems:
            self._fullest.pop(id, None)
            if "free" in words:
                self._fullest[id] = float(words["free"])
        return (HTTPStatus.OK if systems else HTTPStatus.NOT_FOUND), {"file_systems": systems}

    def get_metric_data(self, params: Parameters) -> dict[str, Any]:
        looks = dict[str, dict[tuple[str, str], float]]()
        rows, now = list[dict[str, Any]](), datetime.now(UTC)
        begin, end = (params[name].replace(tzinfo=UTC) for name in ("StartTime", "EndTime"))
        minute = min(_minute(now), _minute(end - timedelta(microseconds=1)))
        part = 1.0 if minute < _minute(now) else now.second / 60
        for query in params["MetricDataQueries"]:
            metric = query["MetricStat"]["Metric"]
            id = next((row["Value"] for row in metric.get("Dimensions", ()) if row["Name"] == "FileSystemId"), "")
            if id not in looks:
                looks[id] = self._look(id) if metric["Namespace"] == "AWS/FSx" else {}
            statistic = query["MetricStat"]["Stat"]
            value = looks[id].get((metric["MetricName"], statistic))
            is_told = value is not None and minute >= begin
            values = [(value or 0.0) * (part if statistic == "Sum" else 1.0)] if is_told else []
            points = {"Timestamps": [minute] * len(values), "Values": values}
            rows.append({"Id": query["Id"], "Label": metric["MetricName"], "StatusCode": "Complete", **points})
        return {"MetricDataResults": rows, "Messages": []}

    def _look(self, id: str) -> dict[tuple[str, str], float]:
        """Return metric and statistic -> value of the last minute; nothing for a file system that is not there."""
        file_system = self._world.backend("fsx").file_systems.get(id)
        if file_system is None:
            return {}
        used_bytes, now = sum(_sizes(file_system.folder)), time.monotonic()
        earlier, earlier_bytes = self._earlier.get(id, (now, used_bytes))
        self._earlier[id] = (now, used_bytes)
        growth = max(0, used_bytes - earlier_bytes) * 60 / max(_LEAST_S, now - earlier)
        free_bytes = max(0, file_system.storage_capacity * _GIB - used_bytes)
        target_bytes = free_bytes / max(1, file_system.storage_capacity // _TARGET_GIB)
        return {
            ("DataReadBytes", "Sum"): 0.0,
            ("DataWriteBytes", "Sum"): growth,
            ("MetadataOperations", "Sum"): 0.0,
            ("FreeDataStorageCapacity", "Sum"): float(free_bytes),
            ("FreeDataStorageCapacity", "Minimum"): min(target_bytes, self._fullest.get(id, target_bytes)),
        }


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def _sizes(folder: Path) -> Iterator[int]:
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                continue  # it has been removed meanwhile


def install(world: World) -> None:
    figures = Figures(world)
    add_operations(world, CloudWatchResponse, {"get_metric_data": figures.get_metric_data})
    world.routes["/_site/full-target"] = figures.fill_target
