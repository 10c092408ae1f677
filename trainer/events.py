"""JSON lines on stdout: what happened, for people, for log shipping and for tests."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from trainer.contract import Env


def emit(event: str, **fields: object) -> None:
    """Print one event as one line in one write; `time` is seconds since the epoch."""
    line = {"event": event, **fields, "time": round(time.time(), 3)}
    if Env.NODE_NAME in os.environ:
        line.setdefault("node", os.environ[Env.NODE_NAME])
    for name, variable in (("attempt", Env.ATTEMPT), ("rank", "RANK")):
        if os.environ.get(variable, "").isdigit():
            line.setdefault(name, int(os.environ[variable]))
    # The log may lie on a disk that is full: a line less, not a rank less.
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
