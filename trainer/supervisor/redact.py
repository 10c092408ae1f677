"""Secrets are replaced by value in all that the supervisor passes on: lines of the job, events, its last message."""

from __future__ import annotations

import codecs
import json
from typing import IO, Any, Iterable, Iterator
from urllib.parse import quote

REDACTED = "[secret]"
_TELLING = 8
"""Characters of one line of a secret with several that make it worth hiding by itself."""
_LONGEST = 64 * 1024
"""Of a line; what has no end is passed on in pieces, since it would fill the memory."""


class Redactor:
    def __init__(self, values: Iterable[str]) -> None:
        forms: set[str] = set()
        for value in values:
            for text in [value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _TELLING)]:
                plain = json.dumps(text, ensure_ascii=False)[1:-1]
                forms |= {text, text.strip(), plain, json.dumps(text)[1:-1], repr(text)[1:-1], quote(text, safe="")}
        # The longest first: one secret may begin another.
        self._forms = sorted((form for form in forms if form.strip()), key=len, reverse=True)

    def text(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, REDACTED)
        return text

    def within(self, value: Any) -> Any:
        """Replace in all texts of a JSON value; numbers and keys stay, so that it remains one."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.within(one) for key, one in value.items()}
        return [self.within(one) for one in value] if isinstance(value, (list, tuple)) else value

    def lines(self, stream: IO[bytes]) -> Iterator[tuple[str, str]]:
        """Yield each line as it is, to be read, and as it may be shown. Of one longer than `_LONGEST` come pieces
        that split no secret; there is nothing to read in them."""
        held, long, kept = "", False, len(self._forms[0]) - 1 if self._forms else 0
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for raw in iter(lambda: stream.readline(_LONGEST), b""):
            ended = raw.endswith(b"\n") or len(raw) < _LONGEST
            text = decoder.decode(raw, ended).rstrip("\n")
            safe = self.text(held + text)
            cut = len(safe) if ended else len(safe) - kept
            yield ("" if long or not ended else text), safe[:cut]
            held, long = safe[cut:], not ended
        if held:
            yield "", held
