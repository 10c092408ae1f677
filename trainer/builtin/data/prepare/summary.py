"""The report's content besides the manifest: lengths, and excerpts of kept and dropped documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.builtin.data.prepare.filters import MEANING
from trainer.builtin.data.prepare.scan import excerpt_path

KEPT_SHOWN, DROPPED_SHOWN = 8, 3


def summary(work: Path, numbers: list[int], lengths: list[int]) -> dict[str, Any]:
    """Return the summary; its excerpts have the smallest digests, so they are reproducible and not chosen by hand."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for number in numbers:
        for reason, rows in json.loads(excerpt_path(work, number).read_bytes()).items():
            limit = DROPPED_SHOWN if reason else KEPT_SHOWN
            found[reason] = sorted([*found.get(reason, []), *map(tuple, rows)])[:limit]
    return {
        "lengths": lengths,
        "samples": _shown(found.get("", [])),
        "dropped": {reason: _shown(rows) for reason, rows in sorted(found.items()) if reason},
        "meaning": MEANING,
    }


def _shown(rows: list[tuple[int, str, str]]) -> list[dict[str, str]]:
    return [{"file": name, "text": text} for _, name, text in rows]
