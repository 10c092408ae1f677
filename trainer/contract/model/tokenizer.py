"""Hugging Face's `tokenizer.json`, as far as a program without the library `tokenizers` reads it."""

from __future__ import annotations

import json


def first_token(content: bytes) -> str:
    """Return the special token that a tokenizer puts before every text by itself, such as Llama's
    `<|begin_of_text|>`; empty for none."""
    processor = json.loads(content).get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        template = step.get("single") or [{}]
        if "SpecialToken" in template[0]:
            return str(template[0]["SpecialToken"]["id"])
        if "cls" in step:
            return str(step["cls"][0])
    return ""


def padding(content: bytes) -> str | None:
    """Return the token that pads short texts; None if the tokenizer names none."""
    settings = json.loads(content).get("padding") or {}
    return settings.get("pad_token")


def token_numbers(content: bytes) -> dict[str, int]:
    """Return token -> number of all tokens: those of the vocabulary, and those that were added to it."""
    document = json.loads(content)
    vocabulary = (document.get("model") or {}).get("vocab") or {}
    # A unigram model's is a list of (token, score).
    numbers = vocabulary if isinstance(vocabulary, dict) else {row[0]: place for place, row in enumerate(vocabulary)}
    added_tokens = {str(row["content"]): int(row["id"]) for row in document.get("added_tokens", ())}
    return {**numbers, **added_tokens}
