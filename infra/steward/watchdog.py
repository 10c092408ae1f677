"""Whether the steward's loop still turns; one that hangs is ended, and Kubernetes starts its pod again."""

from __future__ import annotations

import faulthandler
import time

STUCK_S = 900.0
"""Without a turn for so long it hangs: all waits of a turn have bounds, and together they are far shorter."""


def rest(seconds: float) -> None:
    """From here `STUCK_S` to the next call; then the stacks of all threads go to the log, and the process ends.

    A lease would not end it: its own thread goes on renewing it. A probe of the kubelet's would ask the same question
    by a server of our own, which another thread answers.
    """
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    time.sleep(seconds)


def over() -> None:
    """Nothing turns any more, and nothing has to."""
    faulthandler.cancel_dump_traceback_later()
