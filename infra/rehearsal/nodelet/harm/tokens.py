"""Replaces all tokens of the data that a process reads, for a while, as a damaged disk or a foreign file does.

Run as `python -I -S tokens.py PID SECONDS`. Standard library only. The copies on the node's disk are changed where the
process has mapped them, and are as they were once this has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

_SUFFIX = ".bin"


def main(pid: int, seconds: float) -> None:
    folder = Path(f"/proc/{pid}")
    lines = (folder / "maps").read_text().splitlines()
    spans = {line.split()[-1]: line.split()[0] for line in lines if line.endswith(_SUFFIX)}
    files = [os.open(folder / "map_files" / span, os.O_RDWR) for span in spans.values()]
    if not files:
        sys.exit("it has mapped no data")
    contents = [os.pread(file, os.fstat(file).st_size, 0) for file in files]
    # Waited for, not handled: a handler that runs just before a sleep does not shorten it. A background process of a
    # shell ignores the first, and what is ignored is never waited for.
    stops = (signal.SIGINT, signal.SIGTERM)
    for number in stops:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    print(f"{len(files)} files", flush=True)
    time.sleep(0.5)  # whoever asks notes the moment of the strike before anybody sees what follows
    try:
        for file, content in zip(files, contents, strict=True):
            os.pwrite(file, bytes(len(content)), 0)
        signal.sigtimedwait(stops, seconds)
    finally:
        for file, content in zip(files, contents, strict=True):
            os.pwrite(file, content, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
