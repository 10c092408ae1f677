"""Pictures as inline SVG; their colours are the page's, by class, so that they follow light and dark."""

from __future__ import annotations

from infra.report.charts.bars import bars
from infra.report.charts.losses import loss_curve, restarts
from infra.report.charts.timeline import timeline

__all__ = ["bars", "loss_curve", "restarts", "timeline"]
