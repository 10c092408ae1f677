"""Keeps each result of each drill, so that a game day can show how often and how differently a fault went."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from infra.rehearsal.drills.judge import DrillResult

HISTORY = "drill-history.jsonl"
"""File in the results folder: one result in each line, the oldest first."""
NEWEST = "drills.json"
"""File beside it: the newest result of each fault."""


def append_results(folder: Path, results: Iterable[DrillResult]) -> None:
    """Write results behind those that are kept, each once."""
    known_strikes = {_strike(result) for result in _lines(folder)}
    fresh_results = [result for result in results if _strike(result) not in known_strikes]
    path = folder / HISTORY
    is_torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        if is_torn and path.stat().st_size:
            file.write("\n")  # a line that was cut short stays one line
        file.writelines(result.model_dump_json() + "\n" for result in fresh_results)


def kept_results(folder: Path) -> list[DrillResult]:
    """Return all kept results, with those of drills that ran before there was a history."""
    results = _lines(folder)
    known_strikes = {_strike(result) for result in results}
    path = folder / NEWEST
    rows = json.loads(path.read_text()) if path.exists() else []
    newest_results = [DrillResult.model_validate(row) for row in rows]
    return [result for result in newest_results if _strike(result) not in known_strikes] + results


def _lines(folder: Path) -> list[DrillResult]:
    path, results = folder / HISTORY, list[DrillResult]()
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            results.append(DrillResult.model_validate_json(line))
        except ValueError:
            continue  # cut short as a drill was killed
    return results


def _strike(result: DrillResult) -> tuple[str, str, str, int]:
    """Return what no two strikes share: a campaign of a day has each fault once at a step."""
    return result.campaign, result.day, result.fault, result.step
