"""Progress of a preparation as JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainer.events import emit


class Teller:
    """Prints progress and the time left, at the rate of this run without the work of earlier ones."""

    def __init__(self) -> None:
        self.more: Callable[[], dict[str, Any]] = dict
        """Further fields of each line."""
        self._first: tuple[float, float] | None = None

    def __call__(self, stage: str, part: float) -> None:
        now = time.monotonic()
        if self._first is None and part > 0:
            self._first = now, part
        left = None
        if self._first is not None and part > self._first[1]:
            left = round((now - self._first[0]) * (1 - part) / (part - self._first[1]))
        emit("progress", stage=stage, part=round(part, 4), left_s=left, **self.more())
