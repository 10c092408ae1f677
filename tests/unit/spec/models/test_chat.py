"""A chat template is read once, from where it lies; what is wrong with it is said with its cure."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra.cli.data.prepare import _of_arguments
from infra.errors import UserError
from infra.spec.campaign import Spec, SpecError
from infra.spec.recipe import folder_of, recipe_of

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
ARGUMENTS = {
    "places": ["/text", "x"], "pattern": "*", "licence": "", "origin": "", "held_out": 0.1, "seed": 1, "format": "chat",
    "vocabulary": 300, "tokenizer": None, "end_of_document": None,
}  # fmt: skip


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    (tmp_path / "tokenizer.json").write_text("{}")
    told = {"eos_token": {"content": "</s>"}, "bos_token": "<s>", "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    return str(tmp_path / "tokenizer.json")


def test_the_template_beside_the_tokenizer_is_read_once_and_the_record_needs_it_no_more(
    tokenizer: str, tmp_path: Path, spec_file: Any
) -> None:
    spec = spec_file({"data.format": "chat", "data.tokenizer": tokenizer, "data.end_of_document": "<unk>"}).spec
    (tmp_path / "tokenizer_config.json").unlink()
    again = Spec.model_validate_json(spec.model_dump_json())
    assert again == spec
    recipe = recipe_of(again)
    assert recipe.parameters.chat is not None and recipe.end_of_document == "<unk>"
    told = {"template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>", "context": spec.training.model.context}
    assert recipe.parameters.chat.model_dump() == told


def test_a_file_of_its_own_goes_before_the_ones_beside_the_tokenizer(
    tokenizer: str, tmp_path: Path, spec_file: Any
) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ 'newer' }}")
    given = {"data.format": "chat", "data.tokenizer": tokenizer}
    assert spec_file(given).spec.data.chat.template == "{{ 'newer' }}"
    (tmp_path / "mine.jinja").write_text("{{ 'mine' }}")
    own = spec_file(
        {**given, "data.chat": {"template": str(tmp_path / "mine.jinja"), "eos_token": "<e>"}}
    ).spec.data.chat
    assert (own.template, own.bos_token, own.eos_token) == ("{{ 'mine' }}", "<s>", "<e>")
    text = spec_file({**given, "data.chat": {"template": "{{ 'text' }}", "eos_token": "<e>"}}).spec.data.chat
    assert (text.template, text.bos_token, text.eos_token) == ("{{ 'text' }}", "<s>", "<e>")


def test_another_context_is_another_data_set(spec_file: Any) -> None:
    given = {"data.format": "chat", "data.chat": {"template": "plain"}}
    folders = {folder_of(spec_file({**given, "training.model.context": context}).spec) for context in (64, 128)}
    assert len(folders) == 2
    alike = {folder_of(spec_file({"training.model.context": context}).spec) for context in (64, 128)}
    assert len(alike) == 1, "text is packed for no context"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"data.format": "chat"}, "there is no chat template: looked for .* beside no tokenizer; write chat.template"),
        ({"data.format": "chat", "data.tokenizer": "/none/tokenizer.json"}, "beside /none/tokenizer.json"),
        ({"data.format": "chat", "data.chat": {"template": "/none.jinja"}}, "/none.jinja: .*No such file"),
        ({"data.chat": {"template": "plain"}}, "`chat` is for `format: chat`"),
    ],
)
def test_a_chat_without_a_template_is_refused(given: dict[str, Any], seen: str, spec_file: Any) -> None:
    with pytest.raises(SpecError) as refused:
        spec_file(given)
    assert re.search(seen, str(refused.value)), refused.value


def test_the_command_line_prepares_samples_for_a_context() -> None:
    chat = _of_arguments({**ARGUMENTS, "chat_template": "plain", "context": 512}, ["/text"]).parameters.chat
    assert chat is not None and chat.context == 512 and "Assistant:" in chat.template
    with pytest.raises(UserError, match="no chat template"):
        _of_arguments({**ARGUMENTS, "chat_template": None, "context": 512}, ["/text"])
    with pytest.raises(UserError, match="context: Input should be a valid integer"):
        _of_arguments({**ARGUMENTS, "chat_template": "plain", "context": None}, ["/text"])
