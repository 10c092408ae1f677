"""Where drills and benchmarks leave what they measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from tests.root import ROOT


def results_of(kind: Literal["drills", "bench"], name: str) -> Path:
    """The JSON file of one of them, under BIVOUAC_RESULTS, else in the clone; to be asked before a site sets that."""
    return Path(os.environ.get("BIVOUAC_RESULTS", ROOT / "results")).absolute() / kind / f"{name}.json"
