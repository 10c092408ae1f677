"""The report of a campaign: a pure model, computed from its record, and its rendering as one page."""

from __future__ import annotations

from infra.reporting.build import build
from infra.reporting.model import Cause, Report
from infra.reporting.page import render
from infra.reporting.record import Record
from infra.reporting.trainer_log import pods_to_read

__all__ = ["Cause", "Record", "Report", "build", "pods_to_read", "render"]
