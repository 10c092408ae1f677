"""The console of all commands, on which foreign text is text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from rich.console import Console
from rich.segment import Segment

from infra.console.visible import visible


class PlainConsole(Console):
    """A console on which only its own styles reach the terminal as controls: text is text, whoever wrote it."""

    silent: ClassVar[bool] = True
    """No console of this process has printed anything."""

    def print(self, *objects: Any, **options: Any) -> None:
        PlainConsole.silent = False
        if not self.is_terminal and all(isinstance(item, str) for item in objects):
            options.setdefault("soft_wrap", True)  # a file has no width at which to break a line
        # Here, since rich drops some controls from a string without a word.
        super().print(*(visible(item) if isinstance(item, str) else item for item in objects), **options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Styles become controls here, so whatever is one before is foreign, however it was built."""
        return super()._render_buffer(
            Segment(segment.text if segment.control else visible(segment.text), segment.style, segment.control)
            for segment in buffer
        )


def say(console: Console, text: object) -> None:
    """Print text as it is: no markup is read, and no line is broken, however narrow the terminal or a log."""
    console.print(text, markup=False, soft_wrap=True)
