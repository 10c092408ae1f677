"""Small conversations, and the recipe of a data set of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from trainer.builtin.data.prepare.vocabulary import train_tokenizer
from trainer.contract import Chat, Parameters
from trainer.contract.recipe import Recipe, Source

CONTEXT = 191
WORDS = ("camp", "node", "lease", "rank", "ümlaut", "shard", "step", "日本")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_in(folder: Path) -> Path:
    """A `tokenizer.json` that knows the template's tokens and has one more that ends documents."""
    made = train_tokenizer(iter([" ".join(WORDS) + " user assistant\n"] * 50), 290)
    made.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    path = folder / "tokenizer.json"
    path.write_text(made.to_str().replace("<|end|>", "<|unused|>"))
    return path


def conversations(count: int, seed: int = 3) -> list[list[dict[str, str]]]:
    chance, found = random.Random(seed), []
    for number in range(count):
        turns: list[dict[str, str]] = []
        for turn in range(chance.choice((1, 1, 2))):
            turns.append({"role": "user", "content": f"{number} {turn} " + " ".join(chance.choices(WORDS, k=2))})
            turns.append({"role": "assistant", "content": " ".join(chance.choices(WORDS, k=chance.randint(1, 6)))})
        found.append(turns)
    return found


def row_of(turns: list[dict[str, str]]) -> dict[str, Any]:
    """Half of the short ones in the other form of a row."""
    if len(turns) == 2 and turns[0]["content"][0] in "02468":
        return {"prompt": turns[0]["content"], "response": turns[1]["content"]}
    return {"messages": turns}


def recipe(folder: Path, rows: list[Any], tokenizer: Path | None, template: str = CHATML, **given: Any) -> Recipe:
    folder.mkdir(exist_ok=True)
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chat = Chat(template=template, **{"eos_token": "<|im_end|>", "context": CONTEXT, **given})
    parameters = Parameters(held_out=0.2, seed=5, format="chat", chat=chat, shard_tokens=500)
    sources = (Source(name="chats", location=str(folder), pattern="*.jsonl"),)
    return Recipe(sources=sources, parameters=parameters, vocabulary=290, tokenizer=tokenizer)
