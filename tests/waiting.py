"""Waiting for what happens elsewhere: by looking again and again, never by a fixed sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(
    seen: Callable[[], Any], within_s: float = 20.0, what: str | Callable[[], str] = "", every_s: float = 0.05
) -> Any:
    """The first true value of `seen`. Raises `AssertionError` saying `what` was awaited, or can be told of it then."""
    deadline = time.monotonic() + within_s
    while not (value := seen()):
        if time.monotonic() > deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {within_s:g} s: {told or 'what was waited for'}")
        time.sleep(every_s)
    return value
