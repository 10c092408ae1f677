"""An end by hand, SIGINT or SIGTERM: an exception in the main thread, which nothing on the way may lose."""

from __future__ import annotations

import logging  # noqa: F401  what it does around a fork must be registered before, and so run inside, what we do
import os
import signal
import sys
import threading
from typing import Any, NoReturn

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.1


class Interrupted(BaseException):
    """Ended by hand. No KeyboardInterrupt, since click would end the program without our word."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_asked = threading.Event()


def asked() -> bool:
    """Whether a signal has come: foreign code may have turned its exception into an error of its own."""
    return _asked.is_set()


def listen() -> None:
    """From now on both signals raise `Interrupted`. A polite end is an end by hand: the lease is given back."""
    for number in _NUMBERS:
        signal.signal(number, _interrupt)
    sys.unraisablehook = _again
    # Raised inside another module's callback, it would leave that module's lock held, on top of being lost.
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)


def _interrupt(number: int, frame: object) -> NoReturn:
    _asked.set()
    raise Interrupted(number)


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)


def _again(lost: Any) -> None:
    """Python drops what is raised in a finalizer or around a fork: the signal comes once more, a moment later."""
    if not isinstance(lost.exc_value, Interrupted):
        sys.__unraisablehook__(lost)
        return
    # Not from here: whatever is raised in this hook would be dropped as well.
    timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), lost.exc_value.number))
    timer.daemon = True
    timer.start()
