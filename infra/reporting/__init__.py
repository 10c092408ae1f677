"""The report of a campaign: a pure model, computed from its record, and its rendering as one page."""

from __future__ import annotations

from infra.reporting.build import build
from infra.reporting.causes import Cause
from infra.reporting.model import Report
from infra.reporting.page import render
from infra.reporting.record import Record, unpacked
from infra.reporting.trainer_log import pods_to_read

__all__ = ["Cause", "Record", "Report", "build", "pods_to_read", "render", "unpacked"]
