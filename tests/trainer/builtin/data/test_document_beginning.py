"""Each document begins with the tokenizer's token where the recipe asks for it; elsewhere the data are as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer, processors

from tests.trainer.data_sets import quiet, read_lengths, recipe, write_text
from trainer.builtin.data.prepare import encode
from trainer.builtin.data.prepare.prepare import make
from trainer.builtin.data.prepare.vocabulary import train_tokenizer
from trainer.contract import Chat
from trainer.contract.model.tokenizer import first_token
from trainer.contract.recipe import Recipe
from trainer.errors import DataError


def tokenizer_file(root: Path, processor: Any = None) -> Path:
    tokenizer = train_tokenizer(iter([f"word{number} of document {number}\n" for number in range(900)]), 300)
    tokenizer.add_special_tokens(["<begin>", "<close>"])
    if processor is not None:
        tokenizer.post_processor = processor
    root.mkdir(exist_ok=True)
    tokenizer.save(str(root / "tokenizer.json"))
    return root / "tokenizer.json"


def template(tokenizer: str = "<begin> $A") -> Any:
    return processors.TemplateProcessing(single=tokenizer, special_tokens=[("<begin>", 300), ("<close>", 301)])


def documents(out: Path) -> list[list[int]]:
    manifest = json.loads((out / "manifest.json").read_text())
    found: list[list[int]] = []
    for shard in [*manifest["train"], *manifest["validation"]]:
        ids = np.fromfile(out / shard["file"], dtype=manifest["dtype"])
        ends = np.cumsum(read_lengths((out / shard["file"]).with_suffix(".idx")))
        found += [document.tolist() for document in np.split(ids, ends[:-1])]
    return found


@pytest.mark.parametrize("batch_characters", [2**19, 64])
def test_every_document_begins_with_the_token_and_else_has_the_same_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_characters: int
) -> None:
    monkeypatch.setattr(encode, "BATCH_CHARACTERS", batch_characters)
    source, given = write_text(tmp_path / "text"), tokenizer_file(tmp_path / "given")
    without = recipe(source).model_copy(update={"tokenizer": given})
    plain = make(without, tmp_path / "plain", quiet, cores=1)
    began = without.model_copy(update={"beginning_of_document": "<begin>"})
    manifest = make(began, tmp_path / "began", quiet, cores=1)
    assert (plain.beginning_of_document, manifest.beginning_of_document) == (None, 300)
    assert documents(tmp_path / "began") == [[300, *document] for document in documents(tmp_path / "plain")]
    assert "beginning_of_document" not in (tmp_path / "plain/manifest.json").read_text(), "older digests stay"
    with pytest.raises(DataError, match="no such token"):
        make(without.model_copy(update={"beginning_of_document": "<none>"}), tmp_path / "wrong", quiet, cores=1)


def test_a_trained_tokenizer_and_a_chat_template_begin_no_document(tmp_path: Path) -> None:
    made, given = recipe(tmp_path), tokenizer_file(tmp_path / "given")
    with pytest.raises(ValidationError, match="need a tokenizer"):
        Recipe.model_validate(made.model_dump() | {"beginning_of_document": "<begin>"})
    chat = made.parameters.model_dump() | {"format": "chat", "chat": Chat(template="x", context=64).model_dump()}
    with pytest.raises(ValidationError, match="chat template has its own"):
        fields = {"tokenizer": given, "beginning_of_document": "<begin>", "parameters": chat}
        Recipe.model_validate(made.model_dump() | fields)


@pytest.mark.parametrize(
    ("processor", "first"),
    [
        (None, ""),
        (template(), "<begin>"),
        (template("$A <close>"), ""),
        (processors.Sequence([processors.ByteLevel(trim_offsets=False), template()]), "<begin>"),
        (processors.BertProcessing(("<close>", 301), ("<begin>", 300)), "<begin>"),
        (processors.RobertaProcessing(("<close>", 301), ("<begin>", 300)), "<begin>"),
        (processors.ByteLevel(trim_offsets=False), ""),
    ],
)
def test_the_first_token_is_what_the_library_writes_first(tmp_path: Path, processor: Any, first: str) -> None:
    path = tokenizer_file(tmp_path / "given", processor)
    library = Tokenizer.from_file(str(path))
    whole, plain = (library.encode("word1", add_special_tokens=special).ids for special in (True, False))
    assert (whole[:1] != plain[:1]) == bool(first), "the library's own word"
    assert first_token(path.read_bytes()) == first
