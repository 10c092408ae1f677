"""A command's progress without a console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SilentProgress:
    """Keeps the notes, the steps and the stages instead of printing them."""

    def __init__(self, notes: list[str] | None = None, steps: list[str] | None = None) -> None:
        self.notes, self.steps = [] if notes is None else notes, [] if steps is None else steps
        self.stages: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, text: str) -> None:
        self.steps.append(text)

    @contextmanager
    def stage(self, name: str, purpose: str) -> Iterator[None]:
        self.stages.append(name)
        yield
