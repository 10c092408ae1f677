"""The rules by which documents are omitted, each with a name; they work on bytes to be fast."""

from __future__ import annotations

import numpy as np

from trainer.contract import Parameters

EMPTY = "empty"
NOT_UTF8 = "not_utf8"
BAD_RECORD = "bad_record"
LINE_TOO_LONG = "line_too_long"
DUPLICATE = "duplicate"
TOO_SHORT = "too_short"
TOO_LONG = "too_long"
BINARY = "binary"
REPETITIVE = "repetitive"
FEW_LETTERS = "few_letters"
NO_RESPONSE = "no_response"
TEMPLATE_REFUSED = "template_refused"
REWRITTEN = "rewritten"
SAMPLE_TOO_LARGE = "sample_too_large"
BEYOND_CONTEXT = "beyond_context"
END_INSIDE = "end_inside"

MEANING = {
    EMPTY: "no text, or white space only",
    NOT_UTF8: "bytes that are not UTF-8",
    BAD_RECORD: "a line that is not a JSON object with the text field, or a row without text; of chats a line without "
    "prompt and response, or messages, of text",
    LINE_TOO_LONG: "a JSON line larger than 64 MiB",
    DUPLICATE: "the very text of an earlier document",
    TOO_SHORT: "fewer characters than min_characters",
    TOO_LONG: "more characters than max_characters",
    BINARY: "more control characters than max_control_share",
    REPETITIVE: "more repeated lines than max_repeated_lines",
    FEW_LETTERS: "fewer letters and digits than min_letters_share",
    NO_RESPONSE: "no response, or an empty one",
    TEMPLATE_REFUSED: "the chat template refuses these roles or fields",
    REWRITTEN: "the chat template writes an earlier turn otherwise once a later one follows",
    SAMPLE_TOO_LARGE: "a sample of more than 512 KiB of text",
    BEYOND_CONTEXT: "the response begins beyond the context",
    END_INSIDE: "the token that ends a document stands within the sample: its two parts would not see each other",
}
REASONS = tuple(MEANING)
"""The scan's records hold a reason's index, or `KEPT` for kept documents."""
KEPT = 255

_SPACE, _CONTROL, _LETTER = 1, 2, 4


def judge(text: str, content: bytes, rules: Parameters) -> str | None:
    """Return the first rule that a document breaks, or None."""
    if not text or text.isspace():
        return EMPTY
    if len(text) < rules.min_characters:
        return TOO_SHORT
    if rules.max_characters is not None and len(text) > rules.max_characters:
        return TOO_LONG
    if rules.max_control_share < 1 or rules.min_letters_share > 0:
        kinds = np.bincount(_KIND[np.frombuffer(content, dtype=np.uint8)], minlength=5)
        if kinds[_CONTROL] > rules.max_control_share * len(content):
            return BINARY
        if kinds[_LETTER] < rules.min_letters_share * (len(content) - kinds[_SPACE]):
            return FEW_LETTERS
    if rules.max_repeated_lines < 1 and _repeated_lines(content) > rules.max_repeated_lines:
        return REPETITIVE
    return None


def _repeated_lines(content: bytes) -> float:
    lines = [line for line in content.split(b"\n") if line.strip()]
    return 1 - len(set(lines)) / len(lines) if lines else 0.0


def _kinds() -> np.ndarray:
    table = np.zeros(256, dtype=np.uint8)
    table[:32], table[127] = _CONTROL, _CONTROL
    table[[9, 10, 11, 12, 13, 32]] = _SPACE
    for low, high in (("0", "9"), ("A", "Z"), ("a", "z")):
        table[ord(low) : ord(high) + 1] = _LETTER
    table[128:] = _LETTER
    return table


_KIND = _kinds()
