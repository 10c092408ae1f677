"""Where drills and benchmarks leave what they measured."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Literal

from tests.root import ROOT


def results_of(kind: Literal["drills", "bench"], name: str) -> Path:
    """The JSON file of one of them, under BIVOUAC_RESULTS, else in the clone; to be asked before a site sets that."""
    return Path(os.environ.get("BIVOUAC_RESULTS", ROOT / "results")).absolute() / kind / f"{name}.json"


def conclude(results: Path, document: Any, cases: int, failed: int, begun: float) -> int:
    """Keep what a drill saw, print the line that `tests.drills.all` reads, and return the exit code. `begun`: when it
    began, of the monotonic clock."""
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(document, indent=1))
    print(f"drill {results.stem}: {cases} cases, {failed} failed, {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0
