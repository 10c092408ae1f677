"""Lines of a plan's cost, for what the meter makes of a record."""

from __future__ import annotations

from typing import Any

from infra.plan.estimates.cost import CostLine


def line(name: str, usd_per_hour: int | str = 0, usd: int = 0, **more: Any) -> CostLine:
    base = {"name": name, "usd_per_hour": usd_per_hour, "hours": 0, "usd": usd, "formula": "of a test"}
    return CostLine.model_validate(base | more)


def lines(base: int | str, nodes: int | str) -> tuple[CostLine, ...]:
    """Return what bills with the stack, and all GPU nodes, in USD per hour."""
    return line("EKS control plane", base), line("GPU nodes", nodes, gpu=True)
