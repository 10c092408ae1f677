"""Waiting for what happens elsewhere: by looking again and again, never by a fixed sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

HUNG_S = 1200.0
"""No test is about this bound: what takes so long hangs, however busy the machine is."""


def until(
    seen: Callable[[], Any], what: str | Callable[[], str] = "", every_s: float = 0.05, within_s: float = HUNG_S
) -> Any:
    """The first true value of `seen`. Raises `AssertionError` saying `what` was awaited, or can be told of it then."""
    deadline = time.monotonic() + within_s
    while not (value := seen()):
        if time.monotonic() > deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {within_s:g} s: {told or 'what was waited for'}")
        time.sleep(every_s)
    return value
