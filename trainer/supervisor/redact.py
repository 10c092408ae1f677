"""The job's secrets, which an init container has put into the pod's memory, and its lines as they come: secrets are
replaced by value in all that the supervisor passes on."""

from __future__ import annotations

import codecs
import json
import os
import re
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple
from urllib.parse import quote

REDACTED = "[secret]"
_TELLING = 8
"""Characters of one line of a secret with several that make it worth hiding by itself."""
_LONGEST = 64 * 1024
"""Of a line; what has no end is passed on in pieces, since it would fill the memory."""
_END = re.compile(rb"(\r?\n|\r(?=[^\n]))")
"""A carriage return ends a line too: progress bars write over theirs. The last one read waits for what follows it."""
_FILE = "/bivouac-secrets/values.json"
"""`trainer.contract.workload.SECRETS`."""


class SafeLine(NamedTuple):
    text: str
    """As it is, to be read; empty for a piece of one that is too long."""
    safe: str
    """As it may be shown."""
    written_over: bool
    """The next one takes its place."""


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

    def redact(self, value: Any) -> Any:
        """Replace in all texts of a JSON value; numbers and keys stay, so that it remains one."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.redact(element) for key, element in value.items()}
        return [self.redact(element) for element in value] if isinstance(value, (list, tuple)) else value

    def lines(self, stream: Any) -> Iterator[SafeLine]:
        """Yield each line of a buffered stream of bytes. Of one longer than `_LONGEST` come pieces that split no
        secret; there is nothing to read in them."""
        held_text, long, overlap = "", False, len(self._forms[0]) - 1 if self._forms else 0
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for raw, end in _pieces(stream):
            is_end = end != b""
            text = decoder.decode(raw, is_end)
            safe = self.text(held_text + text)
            cut = len(safe) if is_end else len(safe) - overlap
            yield SafeLine("" if long or not is_end else text, safe[:cut], end == b"\r")
            held_text, long = safe[cut:], not is_end
        if held_text:
            yield SafeLine("", held_text, False)


def _pieces(stream: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield each line with its end; an empty end for a piece of a line that is too long."""
    left = b""
    for read in iter(lambda: stream.read1(_LONGEST), b""):
        *whole_parts, left = _END.split(left + read)
        for text, end in zip(whole_parts[::2], whole_parts[1::2]):
            while len(text) >= _LONGEST:
                yield text[:_LONGEST], b""
                text = text[_LONGEST:]
            yield text, end
        while len(left) >= _LONGEST:
            yield left[:_LONGEST], b""
            left = left[_LONGEST:]
    if left:
        yield left[:-1] if left.endswith(b"\r") else left, b"\n"


def take_secrets(names: Iterable[str]) -> None:
    """Put the values into the environment, which the job inherits. Raises `ValueError` for one that is missing."""
    wanted_names = list(names)
    if not wanted_names:
        return
    values = json.loads(Path(os.environ.get("BIVOUAC_SECRETS", _FILE)).read_text())
    missing = [name for name in wanted_names if name not in values]
    if missing:
        raise ValueError("the pod has no secret " + ", ".join(missing))
    os.environ.update({name: values[name] for name in wanted_names})
