"""Draw on a terminal as little as has changed: a frame costs a slow line a few hundred bytes, not all of it."""

from __future__ import annotations

import time

from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import ControlType, Segment, Segments

_SHARE = 10
"""Of the time, drawing takes one part in so many."""


class LineScreen:
    """A terminal's alternate screen, drawn line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._size = (0, 0)
        self._rows: list[list[Segment]] = []
        """As they stand on the screen."""
        self.rest_s = 0.0
        """Seconds to leave the terminal alone: a line that was slow to take the last frame is not flooded."""

    def draw(self, picture: RenderableType) -> None:
        """Draw the lines that differ from those that stand there. What is longer than the screen is cut off."""
        console, begin = self._console, time.monotonic()
        size = (console.width, console.height)
        rows = console.render_lines(picture, console.options.update(width=size[0], height=None), pad=False)[: size[1]]
        with console:  # one write
            if size != self._size:
                console.control(Control.clear())
                self._size, self._rows = size, []
            for number, row in enumerate(rows):
                if number >= len(self._rows) or row != self._rows[number]:
                    console.control(Control.move_to(0, number), Control((ControlType.ERASE_IN_LINE, 2)))
                    console.print(Segments(row), end="")
            for number in range(len(rows), len(self._rows)):
                console.control(Control.move_to(0, number), Control((ControlType.ERASE_IN_LINE, 2)))
        self._rows = rows
        self.rest_s = (_SHARE - 1) * (time.monotonic() - begin)
