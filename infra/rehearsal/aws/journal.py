"""A record of all changes in order, read at `/_site/changes?N` from entry N on.

Requests count on arrival, whatever the answer; reads, leases and the emulator's own principal are left out.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from infra.rehearsal.aws.world import Call, World

_READS = ("Get", "List", "Describe", "Head", "BatchGet", "BatchCheck", "AssumeRole")
_APP = re.compile(r"\bapp/([\w.-]+)")


class Journal:
    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._rows: list[dict[str, str]] = []

    def hook(self, call: Call) -> None:
        quiet = call.action.startswith(_READS) or "/leases/" in call.path
        if quiet or call.access_key == self._world.agent_key[0]:
            return
        app = _APP.search(call.agent)
        row = {"service": call.service, "action": call.action, "path": call.path, "app": app[1] if app else ""}
        with self._lock:
            self._rows.append(row)

    def route(self, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """`app` is the requester's AWS_SDK_UA_APP_ID, empty without one."""
        begin = int(query) if query.isdigit() else 0
        with self._lock:
            return 200, {"changes": self._rows[begin:], "next": len(self._rows)}


def install(world: World) -> None:
    journal = Journal(world)
    # Before the hooks that answer: refused requests count too.
    world.faults.insert(0, journal.hook)
    world.routes["/_site/changes"] = journal.route
