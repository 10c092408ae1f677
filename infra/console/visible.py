"""Foreign text on a terminal: what would move the cursor, change colours or turn the direction of writing is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_NOT_SEEN = "\u200b\u2028\u2029\u2060\ufeff\ud800-\udfff"
_HIDDEN = re.compile(f"[{_CONTROLS}{_DIRECTIONS}{_NOT_SEEN}]")
_HIDDEN_OR_LINES = re.compile(f"[\t\n{_CONTROLS}{_DIRECTIONS}{_NOT_SEEN}]")


def visible(text: str, lines: bool = True) -> str:
    """Return the text with controls and marks of direction as `\\x1b` or `\\u202e`. Tabs and ends of lines stay where
    `lines` are wanted."""
    return (_HIDDEN if lines else _HIDDEN_OR_LINES).sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class PlainConsole(Console):
    """A console on which only its own styles reach the terminal as controls: text is text, whoever wrote it."""

    def print(self, *objects: Any, **how: Any) -> None:
        # Here, since rich drops some controls from a string without a word.
        super().print(*(visible(item) if isinstance(item, str) else item for item in objects), **how)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Styles become controls here, so whatever is one before is foreign, however it was built."""
        return super()._render_buffer(
            Segment(segment.text if segment.control else visible(segment.text), segment.style, segment.control)
            for segment in buffer
        )
