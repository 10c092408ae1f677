"""Events as JSON lines on stdout, for people, log shipping and tests."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from trainer.contract import Env
from trainer.place import GENERATION_VARIABLE


def emit(event: str, **fields: object) -> None:
    """Print an event as one line in one write; `time` is in seconds since the epoch."""
    line = {"event": event, **fields, "time": round(time.time(), 3)}
    if Env.NODE_NAME in os.environ:
        line.setdefault("node", os.environ[Env.NODE_NAME])
    for name, variable in (("attempt", Env.ATTEMPT), ("generation", GENERATION_VARIABLE), ("rank", "RANK")):
        if os.environ.get(variable, "").isdigit():
            line.setdefault(name, int(os.environ[variable]))
    # The log's disk may be full: lose a line rather than a rank.
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
