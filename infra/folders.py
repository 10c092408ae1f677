"""Where files lie on this machine: one cache, one results folder, nothing else. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`$BIVOUAC_CACHE`, else `bivouac` in the user's cache folder."""
    if own := os.environ.get("BIVOUAC_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bivouac"


def results_folder(campaign: str) -> Path:
    """Report, certificate and what else is kept of a campaign: `$BIVOUAC_RESULTS` or `results` here."""
    return Path(os.environ.get("BIVOUAC_RESULTS") or "results").resolve() / campaign
