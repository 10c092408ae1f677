"""Samples of prompt and response as text by a chat template, with the places of the responses in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from trainer.builtin.data.prepare.filters import (
    BAD_RECORD,
    BEYOND_CONTEXT,
    END_INSIDE,
    MEANING,
    NO_RESPONSE,
    REWRITTEN,
    SAMPLE_TOO_LARGE,
    TEMPLATE_REFUSED,
)
from trainer.contract import Chat
from trainer.errors import DataError

Places = tuple[tuple[int, int], ...]
"""First character of each response and one past its last, what the template ends it with included."""

MOST_SAMPLE_BYTES = 2**19
"""Encoding with places takes some 150 bytes of memory per byte of text."""
MOST_DROPPED = 0.05
"""A larger share of unfit samples is a mistake of the file or of the template, not of some samples."""
_UNFIT = (
    BAD_RECORD, NO_RESPONSE, TEMPLATE_REFUSED, REWRITTEN, SAMPLE_TOO_LARGE, BEYOND_CONTEXT, END_INSIDE,
)  # fmt: skip
_MARKS_RESPONSES = re.compile(r"\{%-?\s*generation\s*-?%\}")
_DATE = "26 Jul 2024"
"""Llama's templates write today's date unless they are given one; this is the one that they have without a clock."""


class Unfit(Exception):
    """Nothing can be learned from a sample."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def render(row: Any, chat: Chat) -> tuple[str, Places]:
    """Return a row's text and the places of its responses. Raises `Unfit`, and `DataError` for a damaged template.

    A template that marks what the model writes (`{% generation %}`) is taken at its word. Any other is asked for the
    conversation before each response, as a model is asked for it: what the whole one has more is the response.
    """
    messages = _messages(row)
    tools = row.get("tools") or None
    if _MARKS_RESPONSES.search(chat.template):
        text, places = _render(messages, tools, chat, mark_responses=True)
        response_places = tuple((int(begin), int(end)) for begin, end in places if end > begin)
    else:
        text, _ = _render(messages, tools, chat)
        response_places = tuple(_places(text, messages, tools, chat))
    if not response_places:
        raise Unfit(NO_RESPONSE)
    if len(text.encode(errors="replace")) > MOST_SAMPLE_BYTES:
        raise Unfit(SAMPLE_TOO_LARGE)
    return text, response_places


def refuse_waste(dropped_by_source: Sequence[Counter[str]], left: int) -> None:
    """Raise `DataError` if too many samples were unfit. `dropped_by_source`: by source; `left`: those that are not."""
    counts = {reason: sum(source_counts[reason] for source_counts in dropped_by_source) for reason in _UNFIT}
    counts = {reason: count for reason, count in counts.items() if count}
    unfit = sum(counts.values())
    if unfit > MOST_DROPPED * (unfit + left):
        detail = "; ".join(f"{reason} {count}: {MEANING[reason]}" for reason, count in counts.items())
        cure = "repair the file, or take another data.chat.template, data.end_of_document or model.context"
        problem = f"more than {MOST_DROPPED:.0%} of the samples cannot be learned from"
        raise DataError(problem, f"{unfit} of {unfit + left}: {detail}", cure)


def _messages(row: Any) -> list[dict[str, Any]]:
    """Return the conversation. Raises `Unfit` for a row that is none, or has an empty response."""
    if not isinstance(row, dict):
        raise Unfit(BAD_RECORD)
    messages = row.get("messages")
    if messages is None:
        pair = (("user", row.get("prompt")), ("assistant", row.get("response")))
        messages = [{"role": role, "content": content} for role, content in pair]
    if not isinstance(messages, list) or not all(isinstance(turn, dict) for turn in messages):
        raise Unfit(BAD_RECORD)
    if not all(isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str) for turn in messages):
        raise Unfit(BAD_RECORD)
    responses = [turn["content"] for turn in messages if turn["role"] == "assistant"]
    if not responses or not all(turn.strip() for turn in responses):
        raise Unfit(NO_RESPONSE)
    return messages


def _places(text: str, messages: list[dict[str, Any]], tools: Any, chat: Chat) -> list[tuple[int, int]]:
    places = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt, _ = _render(messages[:index], tools, chat, add_prompt=True)
        turn, _ = _render(messages[: index + 1], tools, chat)
        # Some templates leave out earlier turns' thoughts, or write a thought's frame where the model is asked.
        if not (turn.startswith(prompt) and text.startswith(turn)):
            raise Unfit(REWRITTEN)
        places.append((len(prompt), len(turn)))
    return places


def _render(
    messages: list[dict[str, Any]], tools: Any, chat: Chat, *, add_prompt: bool = False, mark_responses: bool = False
) -> tuple[str, Any]:
    from jinja2 import TemplateError, TemplateSyntaxError

    try:
        texts, places = _renderer(chat.template)(
            conversations=[messages],
            tools=tools,
            chat_template=chat.template,
            return_assistant_tokens_mask=mark_responses,
            add_generation_prompt=add_prompt,
            bos_token=chat.bos_token,
            eos_token=chat.eos_token,
            date_string=_DATE,
        )
    except TemplateSyntaxError as error:
        raise DataError("the chat template cannot be read", f"line {error.lineno}: {error}", "repair it") from error
    except (TemplateError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise Unfit(TEMPLATE_REFUSED) from error
    return texts[0], places[0] if mark_responses else ()


@lru_cache(maxsize=1)
def _renderer(template: str) -> Any:
    if "strftime_now" in template and "date_string" not in template:
        cure = "take a copy of the template with a date of your own"
        raise DataError("the chat template writes today's date: tomorrow's data would differ", "strftime_now", cure)
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template
