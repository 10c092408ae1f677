"""SIGINT and SIGTERM as an exception in the main thread, which is not lost in finalizers or around forks."""

from __future__ import annotations

import logging  # noqa: F401  its fork handlers must be registered before ours, so that they run inside ours
import os
import signal
import sys
import threading
from typing import Any, NoReturn

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.1


class Interrupted(BaseException):
    """SIGINT or SIGTERM came. Not a KeyboardInterrupt: click would end the program without our message."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_asked = threading.Event()


def asked() -> bool:
    """Return True if a signal has come: foreign code may have turned its exception into an error of its own."""
    return _asked.is_set()


def listen() -> None:
    """Make both signals raise `Interrupted`. SIGTERM also counts as an end by hand, so the lease is given back."""
    for number in _NUMBERS:
        signal.signal(number, _interrupt)
    sys.unraisablehook = _again
    # An exception inside another module's fork handler would be lost and leave that module's lock held.
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)


def _interrupt(number: int, frame: object) -> NoReturn:
    _asked.set()
    raise Interrupted(number)


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)


def _again(unraisable: Any) -> None:
    """Send the signal again a moment later: Python drops exceptions raised in a finalizer or around a fork."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)
        return
    # A timer, since an exception raised in this hook would be dropped as well.
    timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), unraisable.exc_value.number))
    timer.daemon = True
    timer.start()
