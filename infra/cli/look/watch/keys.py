"""Keys of a terminal, one at a time, while a frame is shown."""

from __future__ import annotations

import os
import select
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed_keys(descriptor: int) -> Iterator[Callable[[float], str]]:
    """Yield a function that waits so many seconds for a key and returns it, or nothing. Signals stay signals. The
    terminal is afterwards as it was; where there is none, no key ever comes."""
    try:
        modes = termios.tcgetattr(descriptor)
    except (termios.error, OSError, ValueError):
        yield _wait
        return
    cooked = modes[3]
    modes[3] = cooked & ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
    modes[3] = cooked
    try:
        yield lambda seconds: _key(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _key(descriptor: int, seconds: float) -> str:
    if not select.select([descriptor], [], [], seconds)[0]:
        return ""
    typed = os.read(descriptor, 1)
    return typed.decode(errors="replace") if typed else _wait(seconds)  # at the end nobody can type any more
