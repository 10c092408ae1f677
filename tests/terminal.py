"""A command on a terminal, as a person has it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.waiting import HUNG_S


def on_terminal(command: list[str], typed: str, env: Mapping[str, str], cwd: Path) -> tuple[int, str]:
    """Run a command with a terminal of its own; `typed` lies in it until it is read. Return exit code and output."""
    ours, theirs = os.openpty()
    os.write(ours, typed.encode())
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(env), cwd=cwd, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the terminal has no other end any more
        while data := os.read(ours, 4096):
            shown += data
    os.close(ours)
    return process.wait(timeout=HUNG_S), shown.decode().replace("\r\n", "\n")
