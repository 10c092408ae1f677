"""Prompt and response as masked tokens: those of transformers, each sample whole in one sequence; and refusals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from infra.spec.models.chat import PLAIN_TEMPLATE
from tests.trainer.builtin.data.chats import CHATML, CONTEXT, WORDS, conversations, recipe, row_of, tokenizer_in
from tests.trainer.data_sets import content, quiet, read_lengths
from trainer.builtin.data.held_out import open_held_out
from trainer.builtin.data.prepare import samples
from trainer.builtin.data.prepare.prepare import make
from trainer.builtin.data.prepare.samples import pack
from trainer.builtin.data.reader import Reader
from trainer.client.bivouac_data.reader import folder_opener, parted
from trainer.client.bivouac_data.sequences import Sequences
from trainer.contract import DataManifest, Parameters
from trainer.contract.recipe import Recipe, Source
from trainer.errors import DataError

SAID = "{{ m['content'] }}<|im_end|>\n"
MARKED = CHATML.replace(
    SAID,
    f"{{% if m['role'] == 'assistant' %}}{{% generation %}}{SAID}{{% endgeneration %}}{{% else %}}{SAID}{{% endif %}}",
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"))


def stored(out: Path, manifest: DataManifest, part: str) -> np.ndarray:
    return np.concatenate([np.fromfile(out / shard.file, dtype=manifest.dtype) for shard in getattr(manifest, part)])


def samples_of(out: Path, manifest: DataManifest) -> set[tuple[int, ...]]:
    """The samples of all sequences, as stored, found by the token that ends each."""
    end, found = manifest.end_of_document, list[tuple[int, ...]]()
    for part in ("train", "validation"):
        for sequence in stored(out, manifest, part).reshape(-1, CONTEXT + 1).tolist():
            tokens: list[int] = []
            for token in sequence:
                tokens.append(token)
                if token in (end, ~end):
                    found.append(tuple(tokens))
                    tokens = []
            assert not tokens, "a sample goes on in the next sequence"
    return {one for one in found if len(one) > 1}


@pytest.mark.parametrize("template", [MARKED, CHATML], ids=["marked", "unmarked"])
def test_tokens_and_masks_are_those_of_transformers(tokenizer: Path, tmp_path: Path, template: str) -> None:
    chats = conversations(60)
    manifest = make(
        recipe(tmp_path / "text", [row_of(chat) for chat in chats], tokenizer, template), tmp_path / "out", quiet, 1
    )
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
    end, wanted = manifest.end_of_document, set()
    for turns in chats:
        told = theirs.apply_chat_template(
            turns, chat_template=MARKED, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        marked = zip(told["input_ids"], told["assistant_masks"], strict=True)
        wanted.add((*(token if counts else -1 - token for token, counts in marked), -1 - end))
    assert samples_of(tmp_path / "out", manifest) == wanted and len(wanted) == 60
    assert (manifest.format, manifest.documents, manifest.skipped_documents) == (3, 60, 0)
    assert theirs.convert_ids_to_tokens(end) == "<|endoftext|>"
    ids = stored(tmp_path / "out", manifest, "train")
    assert manifest.counted_tokens == (ids >= 0).sum() and manifest.train_tokens == len(ids)
    lengths = np.concatenate([read_lengths(tmp_path / "out" / shard.index) for shard in manifest.train])
    assert lengths.sum() == len(ids) and len(lengths) == manifest.documents - manifest.held_out_documents


def test_readers_give_tokens_and_mask_and_count_no_sequence_twice(tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = make(
        recipe(tmp_path / "text", [row_of(conversation) for conversation in conversations(60)], tokenizer),
        out,
        quiet,
        1,
    )
    rows = stored(out, manifest, "train").reshape(-1, CONTEXT + 1)
    reader = Reader(manifest, folder_opener(out), CONTEXT, 1)
    assert reader.samples == len(rows)
    epoch = reader.batch(range(reader.samples))
    assert sorted(epoch.tolist()) == sorted(rows.tolist())
    tokens, counted = parted(epoch)
    assert tokens.min() >= 0 and np.array_equal(np.where(counted, tokens, -1 - tokens), epoch)
    assert counted[:, 1:].any(axis=1).all() and not counted[:, 0].any()

    held = open_held_out(out, "", manifest.vocabulary, CONTEXT).held_out(99)
    assert np.array_equal(held, reader.held_out(99)) and len(held) == manifest.validation_tokens // (CONTEXT + 1)
    feed = Sequences(out, CONTEXT, global_batch=2, micro_batch=2, seed=1, rank=0, world_size=1)
    part = next(iter(feed))
    assert np.array_equal(part["tokens"].numpy(), tokens[:2]) and np.array_equal(part["counted"].numpy(), counted[:2])
    feed.done(1, [part])
    for opened in (
        lambda: Reader(manifest, folder_opener(out), 64, 1),
        lambda: open_held_out(out, "", manifest.vocabulary, 64),
    ):
        with pytest.raises(DataError, match=f"packed for {CONTEXT}, model.context 64"):
            opened()


def test_a_tokenizer_of_our_own_learns_to_end_with_the_documents_end(tmp_path: Path) -> None:
    rows = [row_of(conversation) for conversation in conversations(60)]
    made = recipe(tmp_path / "text", rows, None, PLAIN_TEMPLATE, eos_token="")
    manifest = make(made, tmp_path / "out", quiet, 1)
    own = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    learned = {
        own.decode([token for token in sample if token >= 0]) for sample in samples_of(tmp_path / "out", manifest)
    }
    assert {sample[-1] for sample in samples_of(tmp_path / "out", manifest)} == {manifest.end_of_document}
    pairs = [turns for turns in conversations(60) if len(turns) == 2]
    assert {f" {turns[1]['content']}\n" for turns in pairs} <= learned


def test_a_long_sample_loses_its_end_and_one_whose_response_begins_beyond_goes(tokenizer: Path, tmp_path: Path) -> None:
    rows = [row_of(conversation) for conversation in conversations(60)]
    long = " ".join(WORDS * 9)
    rows += [{"prompt": "tell", "response": long}, {"prompt": long, "response": "no"}]
    manifest = make(recipe(tmp_path / "text", rows, tokenizer), tmp_path / "out", quiet, 1)
    (source,) = manifest.sources
    assert (source.cut, source.dropped, manifest.documents) == (1, {"beyond_context": 1}, 61)
    with pytest.raises(AssertionError, match="goes on"):
        samples_of(tmp_path / "out", manifest)


BAD = {
    "no_response": {"prompt": "why", "response": " \n"},
    "bad_record": {"prompt": "why"},
    "template_refused": {"messages": [{"role": "refused", "content": "x"}, {"role": "assistant", "content": "y"}]},
}
STRICT = CHATML.replace(
    "{% for", "{% if messages[0]['role'] == 'refused' %}{{ raise_exception('no') }}{% endif %}{% for", 1
)


@pytest.mark.parametrize(("reason", "row"), BAD.items(), ids=BAD)
def test_a_few_unfit_samples_are_counted_and_many_refused(
    tokenizer: Path, tmp_path: Path, reason: str, row: dict[str, Any]
) -> None:
    rows: list[Any] = [row_of(conversation) for conversation in conversations(57)]
    made = make(recipe(tmp_path / "text", [*rows, row, row, row], tokenizer, STRICT), tmp_path / "few", quiet, 1)
    assert (made.sources[0].dropped, made.documents) == ({reason: 3}, 57), "a twentieth is not more than a twentieth"
    with pytest.raises(DataError, match=f"4 of 61: {reason} 4: .*; cure: repair the file"):
        make(recipe(tmp_path / "text", [*rows, *[row] * 4], tokenizer, STRICT), tmp_path / "many", quiet, 1)


@pytest.mark.parametrize(
    ("template", "end", "seen"),
    [
        (CHATML, "<|im_end|>", "end_inside 60: "),
        ("{{ messages | length }}" + CHATML, None, "rewritten "),
        ("{% for m in messages %}", None, "the chat template cannot be read"),
        ("{{ strftime_now('%Y') }}" + CHATML, None, "writes today's date"),
    ],
    ids=["the end ends turns", "rewrites", "syntax", "clock"],
)
def test_a_template_that_does_not_fit_is_refused(
    tokenizer: Path, tmp_path: Path, template: str, end: str | None, seen: str
) -> None:
    rows = [{"messages": conversation} for conversation in conversations(60)]
    made = recipe(tmp_path / "text", rows, tokenizer, template).model_copy(update={"end_of_document": end})
    with pytest.raises(DataError, match=seen):
        make(made, tmp_path / "out", quiet, 1)


def test_packed_rows_hold_each_sample_once_and_no_two_rows_would_fit_into_one() -> None:
    chance = random.Random(1)
    for _ in range(50):
        size = chance.randint(4, 40)
        lengths = [chance.randint(1, size) for _ in range(chance.randint(0, 60))]
        rows = pack(lengths, size)
        assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
        fills = sorted(sum(lengths[index] for index in row) for row in rows)
        assert all(fill <= size for fill in fills) and (len(fills) < 2 or fills[0] + fills[1] > size)


def test_small_groups_pack_the_same_samples(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(tmp_path / "text", [row_of(conversation) for conversation in conversations(60)], tokenizer)
    whole = samples_of(tmp_path / "a", make(made, tmp_path / "a", quiet, 1))
    monkeypatch.setattr(samples, "GROUP_TOKENS", 200)
    assert samples_of(tmp_path / "b", make(made, tmp_path / "b", quiet, 1)) == whole
    assert content(tmp_path / "a") != content(tmp_path / "b"), "the groups were not small"


def test_the_manifest_of_text_says_nothing_of_samples(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for number in range(9):
        (tmp_path / "text" / f"{number}.txt").write_text(f"text {number} " * 50)
    plain = Recipe(
        sources=(Source(location=str(tmp_path / "text")),), parameters=Parameters(held_out=0.2, seed=1), vocabulary=260
    )
    make(plain, tmp_path / "out", quiet, 1)
    document = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert document["format"] == 2 and not {"chat", "counted_tokens"} & {*document, *document["parameters"]}
    assert "cut" not in document["sources"][0]
