"""The tokenizer: byte-level BPE trained on a sample of the documents, or a given `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.builtin.data.prepare.scan import sample_path
from trainer.builtin.data.prepare.verdicts import TRAIN, Verdicts
from trainer.errors import DataError, unread

END_OF_DOCUMENT = "<|end|>"
USUAL_ENDS = (END_OF_DOCUMENT, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
SAMPLE_BYTES = 4 * 2**20
"""Approximate size of the text that the tokenizer is trained on."""


def train_tokenizer(texts: Iterator[str], vocabulary: int) -> Tokenizer:
    """Train byte-level BPE. Raises `DataError` when the text is too small for the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise DataError(
            "the text is too small for the vocabulary",
            f"{tokenizer.get_vocab_size()} of {vocabulary} tokens",
            f"set model.vocabulary to {tokenizer.get_vocab_size()} or give more text",
        )
    return tokenizer


def sample_of(work: Path, numbers: list[int], verdicts: Verdicts) -> Iterator[str]:
    """Yield the sampled documents of the training part, in order."""
    for number in numbers:
        verdict = verdicts.of(number)
        for index, text in json.loads(sample_path(work, number).read_bytes()):
            if verdict[index] == TRAIN:
                yield text


def load_tokenizer(content: bytes, has_template: bool = False) -> Tokenizer:
    """Load a tokenizer for encoding: it treats special tokens in the text as text and adds or cuts nothing.

    `has_template`: the text has special tokens of a chat template, which mean themselves.
    """
    tokenizer = Tokenizer.from_str(content.decode())
    tokenizer.encode_special_tokens = not has_template
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def given_tokenizer(path: Path) -> bytes:
    """Return the file's content. Raises `DataError` if it is not a tokenizer, `StorageError` if storage fails."""
    cure = "give a Hugging Face tokenizer.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unread(error, DataError("this is not a tokenizer", f"{path}: {error.strerror}", cure)) from error
    try:
        Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises bare Exception
        raise DataError("this is not a tokenizer", f"{path}: {error}", cure) from error
    return content


def end_of(tokenizer: Tokenizer, name: str | None) -> int:
    """Return the id of the token that ends a document. Raises `DataError` when there is none."""
    for token in (name,) if name else USUAL_ENDS:
        if (token_id := tokenizer.token_to_id(token)) is not None:
            return token_id
    detail = f"looked for {name or ', '.join(USUAL_ENDS)}"
    raise DataError("the tokenizer has no token that ends a document", detail, "name one with --end-of-document")


def begin_of(tokenizer: Tokenizer, name: str | None) -> int | None:
    """Return the id of the token that begins a document. Raises `DataError` when there is none of this name."""
    token_id = None if name is None else tokenizer.token_to_id(name)
    if name is not None and token_id is None:
        raise DataError("the tokenizer has no such token", name, "correct data.beginning_of_document")
    return token_id


def size_of(tokenizer: Tokenizer) -> int:
    """Return the largest id + 1; a vocabulary may have holes."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
