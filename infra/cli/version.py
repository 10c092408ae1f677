"""Bivouac's version and, in a git checkout, the commit."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
_GIT_WITHIN_S = 10


def version(checkout: Path = CHECKOUT) -> str:
    """Return `bivouac 0.1.0 (commit 0123456789ab, with changes)`; the commit only in a checkout."""
    found = f"bivouac {metadata.version('bivouac')}"
    # A checkout of another project may hold us in its .venv: its commit says nothing about us.
    head = _git(checkout, "rev-parse", "--short=12", "HEAD") if (checkout / ".git").exists() else ""
    if not head:
        return found
    changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    return f"{found} (commit {head}{', with changes' if changed else ''})"


def _git(checkout: Path, *arguments: str) -> str:
    """Return git's output; nothing without git or if it refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=_GIT_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
