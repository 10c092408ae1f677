"""`bivouac checkpoints import`: makes a committed step of a folder that DeepSpeed saved."""

from __future__ import annotations

import json as json_text
import subprocess
from pathlib import Path

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.options import stderr
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.data.dataset import trainer_command
from infra.errors import BivouacError, UserError
from trainer.contract import ExitCode, step_folder


def import_command(
    folder: Path, tier: Path, campaign: str, tokens: int, position: int, json: bool, console: Console
) -> int:
    """Import in a process of the trainer, which has torch; nothing in the folder is executed. Raises `UserError` for a
    missing folder, `BivouacError` with the trainer's message for a refused one."""
    if not folder.is_dir():
        raise UserError("there is no such folder", seen=folder, cure="name the tag's folder, such as global_step100")
    place = ("--campaign", campaign, "--shared", str(tier), "--tokens", str(tokens), "--position", str(position))
    command = trainer_command("checkpoint.convert.adopt", str(folder), *place)
    progress = Progress(stderr if json else console)
    with progress.stage("import", f"{folder} is read through the allow-list, copied, and sealed in {tier / campaign}"):
        progress.step("torch is imported, then every file is read twice")
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode != 0:
            error_lines = process.stderr.strip().splitlines() or ["no word"]
            cure = "bring together all files of the tag as DeepSpeed wrote them; a refused file must not be loaded"
            raise _Refused("the folder is not imported", seen=error_lines[-1][:500], cure=cure)
    answer = json_text.loads(process.stdout.strip().splitlines()[-1])
    step_path = tier / campaign / step_folder(answer["step"])
    if json:
        write_json(console, answer | {"folder": str(step_path)})
        return 0
    say(
        console,
        f"{step_path}: {answer['shards']} shards of {answer['world_size']} ranks, sealed as they are now\n"
        "their history, their loss and the state of their random generators are not known\n"
        f"look at it: bivouac checkpoints verify {tier / campaign}\n"
        f"to train on from it: put the step folder into the shared tier of a campaign that is called {campaign},\n"
        "with the same model and ZeRO stage; the trainer begins at the newest sound step it finds there",
    )
    return 0


class _Refused(BivouacError):
    exit_code = int(ExitCode.STORAGE)
