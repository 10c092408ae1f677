"""Traffic and room of FSx for Lustre, as FSx itself tells CloudWatch: over all clients, and by storage target.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from infra.aws.account import Account
from infra.clock import Clock
from infra.errors import first_line
from infra.steward.seeing.sources import PASSING

log = logging.getLogger("steward")
NAMESPACE, DIMENSION = "AWS/FSx", "FileSystemId"
EVERY_S = 120.0
"""CloudWatch bills 0.01 USD for 1,000 metrics asked for, so this takes 0.04 USD a day."""
_PERIOD_S = 60
_BACK = timedelta(minutes=10)
"""FSx tells each minute, and CloudWatch has it minutes later; what is older is not the present."""


class Figure(NamedTuple):
    """A metric of FSx: of which each minute has one value for each storage target."""

    name: str
    statistic: str
    """Over the targets: `Sum` of all, `Minimum` of the fullest."""
    is_rate: bool = False
    """It counts what happened within the minute."""


FIGURES = {
    "read_bytes_s": Figure("DataReadBytes", "Sum", is_rate=True),
    "written_bytes_s": Figure("DataWriteBytes", "Sum", is_rate=True),
    "metadata_s": Figure("MetadataOperations", "Sum", is_rate=True),
    "free_bytes": Figure("FreeDataStorageCapacity", "Sum"),
    "target_free_bytes": Figure("FreeDataStorageCapacity", "Minimum"),
}
"""Field of the metrics -> where it comes from."""


class FileSystemFigures:
    """A thread that asks, since a VPC may have no way to CloudWatch: each call then takes as long as it may."""

    def __init__(self, account: Account, read_id: Callable[[], str | None], clock: Clock) -> None:
        """`read_id` returns the file system's id by the record; None without one, or while it is lost."""
        self._account, self._read_id, self._clock = account, read_id, clock
        self._figures, self._asked_at = dict[str, float](), clock.monotonic()
        self._trouble = ""

    def facts(self) -> dict[str, float]:
        """Return the newest figures by field; empty where nobody could ask lately: unknown is not zero."""
        is_fresh = self._clock.monotonic() - self._asked_at < _BACK.total_seconds()
        return dict(self._figures) if is_fresh else {}

    def open(self) -> None:
        """Ask again and again until the process ends."""
        threading.Thread(target=self._run, name="file system", daemon=True).start()

    def _run(self) -> None:
        rest = threading.Event()
        while True:
            self.ask()
            rest.wait(EVERY_S)

    def ask(self) -> None:
        """Take the newest figures, or say once why there are none."""
        try:
            file_system = self._read_id()
            figures = {} if file_system is None else self._newest(file_system)
        except PASSING as error:
            trouble = first_line(error)
            if trouble != self._trouble:
                log.warning("CloudWatch tells nothing of the file system: %s", trouble)
            self._trouble = trouble
            return
        self._trouble, self._figures, self._asked_at = "", figures, self._clock.monotonic()

    def _newest(self, file_system: str) -> dict[str, float]:
        now = self._clock.now()
        pages = (
            self._account.client("cloudwatch")
            .get_paginator("get_metric_data")
            .paginate(
                MetricDataQueries=[_query(field, figure, file_system) for field, figure in FIGURES.items()],
                StartTime=now - _BACK,
                EndTime=now,
                ScanBy="TimestampDescending",
            )
        )
        newest = dict[str, float]()
        for row in (row for page in pages for row in page["MetricDataResults"] if row["Values"]):
            newest.setdefault(row["Id"], row["Values"][0])  # a later page has what is older
        return {
            field: newest[field] / (_PERIOD_S if figure.is_rate else 1)
            for field, figure in FIGURES.items()
            if field in newest
        }


def _query(field: str, figure: Figure, file_system: str) -> dict[str, Any]:
    dimensions = [{"Name": DIMENSION, "Value": file_system}]
    metric = {"Namespace": NAMESPACE, "MetricName": figure.name, "Dimensions": dimensions}
    return {"Id": field, "MetricStat": {"Metric": metric, "Period": _PERIOD_S, "Stat": figure.statistic}}
