"""Pictures as inline SVG; their colours are the page's, by class, so that they follow light and dark."""

from __future__ import annotations

from infra.reporting.charts.bars import bars
from infra.reporting.charts.losses import loss_curve, restarts
from infra.reporting.charts.timeline import timeline

__all__ = ["bars", "loss_curve", "restarts", "timeline"]
