"""What drills share that drive other processes: bounded waits, an environment put back, what is left running."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.rehearsal.site import handle
from tests.waiting import until as until


@contextmanager
def environ_restored() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def left_over(cache: Path) -> dict[int, str]:
    """Processes whose environment or command line names this cache."""
    found, mark, ours = {}, os.fsencode(str(cache)), handle._ancestry()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        try:
            if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
        except OSError:
            continue
    return found
