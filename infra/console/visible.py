"""Foreign text for people: what would move the cursor, change colours or turn the direction of writing is shown.

Without `rich`, which the steward's image does not have.
"""

from __future__ import annotations

import re

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_NOT_SEEN = "\u200b\u2028\u2029\u2060\ufeff\ud800-\udfff"
_HIDDEN = re.compile(f"[{_CONTROLS}{_DIRECTIONS}{_NOT_SEEN}]")
_HIDDEN_OR_LINES = re.compile(f"[\t\n{_CONTROLS}{_DIRECTIONS}{_NOT_SEEN}]")


def visible(text: str, lines: bool = True) -> str:
    """Return the text with controls and marks of direction as `\\x1b` or `\\u202e`. Tabs and ends of lines stay where
    `lines` are wanted."""
    return (_HIDDEN if lines else _HIDDEN_OR_LINES).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
