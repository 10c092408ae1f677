"""`bivouac data prepare`: text to token shards."""

from __future__ import annotations

from rich.console import Console

from infra.actions.dataset import run_tool
from infra.progress import Progress


def prepare_command(arguments: list[str], out: str, console: Console) -> int:
    progress = Progress(console)
    with progress.stage("data", f"to {out}"):
        made = run_tool(arguments, progress.step)
    console.print(f"{made['tokens']} tokens; unigram model {made['unigram_loss']:.3f} nats per token")
    console.print(f"manifest {made['manifest_sha256']}")
    return 0
