"""HTTP servers in a thread of a test."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.rehearsal.aws.world import World

POLL_S = 0.02
"""`shutdown` waits for the next poll; by default that is half a second, for each of hundreds of tests."""


def serve(http: BaseServer) -> None:
    threading.Thread(target=http.serve_forever, args=(POLL_S,), daemon=True).start()


@contextmanager
def serving(world: World) -> Iterator[None]:
    """Serve an emulated AWS in this process. What moto reads of the environment for it ends with it: later tests with
    moto alone would load 1,500 policies each."""
    from infra.rehearsal.aws import server
    from tests.worlds.shared_models import share_managed_policies

    share_managed_policies()
    before = {name: os.environ.get(name) for name in server.SETTINGS}
    http = server.make(world, "127.0.0.1", 0)
    world.endpoint_url = f"http://127.0.0.1:{http.server_port}"
    world.start()
    serve(http)
    try:
        yield
    finally:
        http.shutdown()
        http.server_close()
        world.stop()
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
