"""The emulated AWS of a drill, in a child process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.aws.account import Account

_PR_SET_PDEATHSIG = 1


def account() -> Any:
    return Account("us-east-1")


def start_aws(work: Path) -> tuple[int, str, str, str]:
    """The emulated AWS in a child, so that the drill's own process stays free of threads and can fork."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        # It must not outlive a drill that is killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(work / "aws.log", os.O_CREAT | os.O_WRONLY), 2)
        try:
            _serve_aws(work, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        document = json.loads(pipe.read())
    return child, document["endpoint"], document["key"], document["secret"]


def _serve_aws(work: Path, pipe: int) -> None:
    from infra.rehearsal.aws import server
    from infra.rehearsal.aws.strict.settings import SOFT
    from infra.rehearsal.aws.world import World

    make: Callable[..., Any] = server.make
    world = World(work=work, tools=Path(), endpoint_url="http://127.0.0.1", strictness=SOFT)
    http = make(world, "127.0.0.1", 0)
    world.endpoint_url = f"http://127.0.0.1:{http.server_port}"
    world.start()
    key, secret = world.operator_key
    os.write(pipe, json.dumps({"endpoint": world.endpoint_url, "key": key, "secret": secret}).encode())
    os.close(pipe)
    http.serve_forever()
