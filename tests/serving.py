"""HTTP servers in a thread of a test."""

from __future__ import annotations

import threading
from socketserver import BaseServer

POLL_S = 0.02
"""`shutdown` waits for the next poll; by default that is half a second, for each of hundreds of tests."""


def serve(http: BaseServer) -> None:
    threading.Thread(target=http.serve_forever, args=(POLL_S,), daemon=True).start()
