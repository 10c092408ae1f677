"""A supervisor whose node dies while it seals: `python -m tests.drills.parts.jobs_dying STEP MOMENT`.

From the first touch of the folder of the STEP-th new step on, operations of the sealing threads on files are counted;
before the one numbered MOMENT the process kills itself. Its job sees that it is alone, and does the same.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading

from trainer.supervisor.__main__ import start

_KINDS = {"open", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.chmod"}
_STEP = re.compile(r"step-\d{8,}")


def main() -> None:
    which, moment = int(sys.argv.pop(1)), int(sys.argv.pop(1))
    counted, lock, touched = 0, threading.Lock(), set[str]()

    def hook(event: str, given: tuple[object, ...]) -> None:
        nonlocal counted
        if event not in _KINDS or not threading.current_thread().name.startswith(("sealing", "ThreadPool")):
            return
        with lock:
            if counted or event == "os.mkdir":
                touched.update(_STEP.findall(str(given[0])))
            if len(touched) >= which:
                counted += 1
            if counted == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    start()


if __name__ == "__main__":
    main()
