"""Traffic and room of FSx for Lustre, as FSx itself tells CloudWatch: over all clients, and by storage target.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from infra.aws.account import Account
from infra.clock import Clock
from infra.errors import first_line
from infra.record.lease_thread import LeaseThread
from infra.record.state import CampaignState
from infra.steward.seeing.sources import PASSING

log = logging.getLogger("steward")
NAMESPACE, DIMENSION = "AWS/FSx", "FileSystemId"
_PERIOD_S = 60
_SETTLES = timedelta(minutes=1)
"""FSx tells a minute when it is over, target by target: a sum over some of them would be too small."""
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


class FileSystemFigures(LeaseThread):
    """A thread that asks, since a VPC may have no way to CloudWatch: each call then takes as long as it may."""

    name, every_s = "file system", 120.0
    """CloudWatch bills 0.01 USD for 1,000 metrics asked for, so this takes 0.04 USD a day."""

    def __init__(
        self, account: Account, guard: Callable[[], None], read_state: Callable[[], CampaignState], clock: Clock
    ) -> None:
        self._account, self._guard, self._read_state, self._clock = account, guard, read_state, clock
        self._figures, self._asked_at = dict[str, float](), clock.monotonic()
        self._trouble = ""

    def facts(self) -> dict[str, float]:
        """Return the newest figures by field; empty where nobody could ask lately: unknown is not zero."""
        is_fresh = self._clock.monotonic() - self._asked_at < _BACK.total_seconds()
        return dict(self._figures) if is_fresh else {}

    def look(self) -> None:
        """Take the newest figures, or say once why there are none. Raises `LeaseLost`."""
        try:
            self._guard()
            state = self._read_state()
            is_there = state.file_system is not None and state.lost is None
            figures = self._newest(str(state.file_system)) if is_there else {}
        except PASSING as error:
            trouble = first_line(error)
            if trouble != self._trouble:
                log.warning("CloudWatch tells nothing of the file system: %s", trouble)
            self._trouble = trouble
            return
        self._trouble, self._figures, self._asked_at = "", figures, self._clock.monotonic()

    def _newest(self, file_system: str) -> dict[str, float]:
        end = self._clock.now().replace(second=0, microsecond=0) - _SETTLES
        pages = (
            self._account.client("cloudwatch")
            .get_paginator("get_metric_data")
            .paginate(
                MetricDataQueries=[_query(field, figure, file_system) for field, figure in FIGURES.items()],
                StartTime=end - _BACK,
                EndTime=end,
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
