"""The step's split in seconds: by the clock on a CPU, by events of the stream on a GPU, which are read once a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Split:
    """Seconds by part of one step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, Any, Any]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if self._device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((name, begin, end))
            return
        begun = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - begun)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def taken(self) -> dict[str, float]:
        """Return the seconds and begin anew. On a GPU the stream must have passed the last event."""
        for name, begin, end in self._events:
            self.add(name, begin.elapsed_time(end) / 1000)
        found, self._seconds, self._events = self._seconds, {}, []
        # The reduction runs within the backward pass.
        if "backward" in found:
            found["backward"] = max(0.0, found["backward"] - found.get("communication", 0.0))
        return found

    def around(self, engine: Any) -> None:
        """Time the engine's reduction of gradients: of ZeRO's stages 0 and 1 all of it, of 2 and 3 what the backward
        pass does not hide."""
        reduce = getattr(engine, "allreduce_gradients", None)
        if reduce is None:
            return

        def timed(*given: Any, **named: Any) -> Any:
            with self.part("communication"):
                return reduce(*given, **named)

        engine.allreduce_gradients = timed


def memory_gib(device: torch.device) -> float:
    """Return the most that this process has allocated on its accelerator; without one, what it has in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * 4096 / 2**30
    except (OSError, ValueError, IndexError):
        return 0.0
