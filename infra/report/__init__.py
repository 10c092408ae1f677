"""The report of a campaign: a pure model, computed from its record, and its page."""

from __future__ import annotations

from infra.report.build import build
from infra.report.causes import TimeCause
from infra.report.model import Report
from infra.report.page import render
from infra.report.record import Record, unpacked
from infra.report.trainer_log import logs_to_keep, pods_to_read

__all__ = ["Record", "Report", "TimeCause", "build", "logs_to_keep", "pods_to_read", "render", "unpacked"]
