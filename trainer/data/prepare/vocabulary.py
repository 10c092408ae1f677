"""The tokenizer: byte-level BPE, trained on a sample of the documents or given as `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.data.prepare.scan import sample_path
from trainer.data.prepare.verdicts import TRAIN, Verdicts
from trainer.errors import DataError, unread

END_OF_DOCUMENT = "<|end|>"
USUAL_ENDS = (END_OF_DOCUMENT, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
SAMPLE_BYTES = 4 * 2**20
"""Text that the tokenizer is trained on, about."""


def train_tokenizer(texts: Iterator[str], vocabulary: int) -> Tokenizer:
    """Raises `DataError` when the text does not hold so many tokens."""
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
            f"{tokenizer.get_vocab_size()} tokens where {vocabulary} were asked for",
            f"set model.vocabulary to {tokenizer.get_vocab_size()} or give more text",
        )
    return tokenizer


def sample_of(work: Path, numbers: list[int], verdicts: Verdicts) -> Iterator[str]:
    """The sampled documents that are trained on, in order."""
    for number in numbers:
        verdict = verdicts.of(number)
        for index, text in json.loads(sample_path(work, number).read_bytes()):
            if verdict[index] == TRAIN:
                yield text


def load_tokenizer(serialized: bytes) -> Tokenizer:
    """For encoding: text that looks like a special token stays text, and nothing is added or cut."""
    tokenizer = Tokenizer.from_str(serialized.decode())
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def given_tokenizer(path: Path) -> bytes:
    """The file's content; raises `DataError` for what is no tokenizer, `StorageError` where that cannot be told."""
    cure = "give a Hugging Face tokenizer.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unread(error, DataError("this is no tokenizer", f"{path}: {error.strerror}", cure)) from error
    try:
        Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises bare Exception
        raise DataError("this is no tokenizer", f"{path}: {error}", cure) from error
    return content


def end_of(tokenizer: Tokenizer, name: str | None) -> int:
    """Id of the token that ends a document; raises `DataError` when there is none."""
    for each in (name,) if name else USUAL_ENDS:
        if (found := tokenizer.token_to_id(each)) is not None:
            return found
    seen = f"looked for {name or ', '.join(USUAL_ENDS)}"
    raise DataError("the tokenizer has no token that ends a document", seen, "name one with --end-of-document")


def size_of(tokenizer: Tokenizer) -> int:
    """Ids run from 0 to one below it; a vocabulary may have holes."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
