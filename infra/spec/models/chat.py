"""The spec's section `data.chat`: how prompt and response become one text."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field

from infra.spec.section import Section

PLAIN = "plain"
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].capitalize() + ': ' + message['content'] }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""One line of `Role: text` per message. It ends no response, so the token that ends a document does."""
_BESIDE = ("chat_template.jinja", "tokenizer_config.json")


class Chat(Section):
    """Resolved when the spec is read: the record holds the template's text, and nobody needs its file again."""

    template: str = Field(default="", min_length=1)
    """A file with a Jinja template, the template itself, or `plain`: a line `User: ...` or `Assistant: ...` for each
    message, for a tokenizer without a template. Default: the template that lies beside `data.tokenizer`."""
    bos_token: str = ""
    """What the template may write as `bos_token`. Default: that of `tokenizer_config.json` beside `data.tokenizer`."""
    eos_token: str = ""
    """Likewise. The exported model ends its answers with it."""


def resolve_template(data: dict[str, Any]) -> dict[str, Any]:
    """Return the section `data` with the text of its chat template. Raises `ValueError`."""
    chat = data.get("chat") or {}
    if not isinstance(chat, dict) or not isinstance(template := chat.get("template", ""), str):
        return data  # its type is refused where types are
    if data.get("format") != "chat":
        if chat:
            raise ValueError("`chat` is for `format: chat`")
        return data
    if "{" in template:
        neighbours = {name: text for name, text in _neighbours(data.get("tokenizer")).items() if name != "template"}
        return data | {"chat": {**neighbours, **chat}}
    if template == PLAIN:
        return data | {"chat": {**chat, "template": PLAIN_TEMPLATE}}
    neighbours = _neighbours(data.get("tokenizer"))
    if template:
        try:
            neighbours["template"] = Path(template).expanduser().read_text()
        except (OSError, ValueError) as error:
            raise ValueError(
                f"chat.template {template}: {error}; give a file with a Jinja template, or plain"
            ) from error
    if not neighbours.get("template"):
        detail = f"looked for {' and '.join(_BESIDE)} beside {data.get('tokenizer') or 'no tokenizer'}"
        raise ValueError(f"there is no chat template: {detail}; write chat.template: a Jinja file, or plain")
    return data | {"chat": {**neighbours, **{name: value for name, value in chat.items() if name != "template"}}}


def _neighbours(tokenizer: Any) -> dict[str, str]:
    """Return what Hugging Face's files beside a `tokenizer.json` say of chats."""
    if not isinstance(tokenizer, str | Path):
        return {}
    folder = Path(tokenizer).expanduser().parent
    try:
        config = json.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        config = {}
    texts = {name: _text(config.get(name)) for name in ("bos_token", "eos_token")}
    template = config.get("chat_template")
    if isinstance(template, list):  # several under names, of which one is the usual one
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    with suppress(OSError, ValueError):
        template = (folder / "chat_template.jinja").read_text()
    return {name: value for name, value in {**texts, "template": template}.items() if isinstance(value, str) and value}


def _text(token: Any) -> Any:
    """Return a special token's text, which some files give as an object."""
    return token.get("content") if isinstance(token, dict) else token
