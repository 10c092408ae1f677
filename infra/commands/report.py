"""`bivouac report NAME`: the report of a campaign as it stands, at any time."""

from __future__ import annotations

from rich.console import Console

from infra.folders import results_folder
from infra.lifecycle import report
from infra.lifecycle.opening import record_of


def report_command(campaign: str, region: str, console: Console) -> int:
    store = record_of(campaign, region)
    written = report.write(store, results_folder(campaign), console.print)
    console.print(f"report: {written['html']}")
    return 0
