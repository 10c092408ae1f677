"""Charts as inline SVG; CSS classes give them the page's colours in light and dark mode."""

from __future__ import annotations

from infra.report.charts.bars import bars
from infra.report.charts.losses import loss_curve, norm_curve, restarts
from infra.report.charts.timeline import timeline

__all__ = ["bars", "loss_curve", "norm_curve", "restarts", "timeline"]
