"""A supervisor whose node dies while it seals: `python -m tests.trainer.supervisor.dying MOMENT`.

From the first touch of the second checkpoint's folder on, operations of the sealing threads on files are counted;
before the one numbered `MOMENT` the process kills itself. Its job sees that it is alone, and does the same.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from trainer.supervisor.__main__ import start

_KINDS = {"open", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"}


def main() -> None:
    moment, counted, lock = int(sys.argv[1]), 0, threading.Lock()

    def hook(event: str, given: tuple[object, ...]) -> None:
        nonlocal counted
        if event not in _KINDS or not threading.current_thread().name.startswith(("sealing", "ThreadPool")):
            return
        with lock:
            if counted or any("step-00000002" in str(one) for one in given):
                counted += 1
            if counted == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    start()


if __name__ == "__main__":
    main()
