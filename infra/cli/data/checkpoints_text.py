"""What `bivouac checkpoints` says of a restored step and of two that differ."""

from __future__ import annotations

import json as json_text
import subprocess
from pathlib import Path
from typing import Any

from rich.console import Console

from infra.checkpoints.work import Restored
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.data.dataset import trainer_command
from infra.errors import BivouacError
from trainer.contract.tree import printable

_MANY = 20


def next_steps(outcome: Restored, folder_text: str) -> str:
    """Return what a person may do with a restored step, whose path is `shown`."""
    if not outcome.of_job:
        return (
            "to evaluate it (train.json and data/ lie beside the archive's golden/):\n"
            f"  python -m trainer.builtin.evaluate --checkpoint {folder_text} --config train.json --data data\n"
            "to train on from it: put the step folder into the shared tier of a campaign with the same model and\n"
            "  ranks, <shared tier>/<campaign>/; the trainer begins at the newest sound step it finds there\n"
            "to load its weights: trainer.builtin.checkpoint.convert.weights.load_weights, or huggingface/ beside the\n"
            "  archive's golden/"
        )
    if outcome.tree is None:
        return (
            "these are the sealed shards: to train on from them, put the step folder into the shared tier of a\n"
            "  campaign of this name, <shared tier>/<campaign>/; its supervisor offers the newest sound step there\n"
            "without --sealed, the job's own files are restored, under the names that it gave them"
        )
    return (
        f"this is what the job wrote as {printable(outcome.tree.root)}, with its own names, links and permissions:\n"
        f"  load it as the job does, such as torch.load, load_file or from_pretrained of {folder_text}\n"
        "to train on from it: give the job this path as what it resumes from (a campaign sets BIVOUAC_RESUME_FROM)"
    )


def compare_steps(first: Path, second: Path) -> dict[str, Any]:
    """Compare two steps in a process of the trainer, which has torch."""
    command = trainer_command("checkpoint.convert.diff", str(first), str(second))
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines() or ["no word"]
        raise BivouacError("the checkpoints cannot be compared", seen=lines[-1][:500], cure="`checkpoints verify` them")
    answer: dict[str, Any] = json_text.loads(process.stdout.strip().splitlines()[-1])
    return answer


def show_difference(answer: dict[str, Any], console: Console) -> None:
    """Print what two steps differ in."""
    for name, (first_value, second_value) in answer["metadata"].items():
        say(console, f"{name}: {first_value} -> {second_value}")
    for key, word in (("only_in_first", "first"), ("only_in_second", "second")):
        for name in answer[key]:
            say(console, f"only in the {word}: {name}")
    equal = sum(row["equal"] for row in answer["shards"])
    console.print(f"{equal} of {len(answer['shards'])} shards are the same bytes")
    rows = [(row["shard"], tensor) for row in answer["shards"] for tensor in row["tensors"]]
    table = Listing("shard", "tensor", "changed", "norm", "norm of difference", "largest")
    tensors = sorted((row for row in rows if "changed" in row[1]), key=lambda row: -row[1]["norm_of_difference"])
    for shard, tensor in tensors[:_MANY]:
        table.row(
            shard, tensor["tensor"], f"{tensor['changed']:,} of {tensor['elements']:,}",
            f"{tensor['norm_first']:.5g} -> {tensor['norm_second']:.5g}", f"{tensor['norm_of_difference']:.3g}",
            f"{tensor['largest_difference']:.3g}",
        )  # fmt: skip
    if tensors:
        table.show(console)
    if len(tensors) > _MANY:
        console.print(f"and {len(tensors) - _MANY} tensors more that moved less; all of them with --json")
    for shard, tensor in [row for row in rows if "change" in row[1]][:_MANY]:
        say(console, f"{shard} {tensor['tensor']}: {tensor['change']}")
