"""The page of dashboards: its files, and uPlot (MIT, https://github.com/leeoniya/uPlot), which draws the lines."""

from __future__ import annotations

from pathlib import Path


def content(name: str) -> bytes:
    """Return a file of the page."""
    return (Path(__file__).parent / name).read_bytes()
