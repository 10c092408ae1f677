"""A watchdog for the steward's loop: a process that hangs is ended, and Kubernetes starts its pod again."""

from __future__ import annotations

import faulthandler
import time

STUCK_S = 900.0
"""A turn this long hangs: all its waits are bounded, and their sum is far shorter."""


def pause(seconds: float) -> None:
    """Sleep. Without another call within `STUCK_S`, log the stacks of all threads and end the process.

    The lease does not end a hung process: a thread of its own renews it. A kubelet's probe does not either: its server
    would answer from another thread.
    """
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    time.sleep(seconds)


def stop() -> None:
    """Stop watching: the loop has ended."""
    faulthandler.cancel_dump_traceback_later()
