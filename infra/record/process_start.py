"""When a process of this machine started: its number alone may be another's by now. Standard library only."""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None if it does not exist or is a zombie. Raises
    `OSError` where it cannot be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])
