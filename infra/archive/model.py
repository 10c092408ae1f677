"""Evaluation and export of the model by the trainer's own programs, in their own processes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

from infra.archive.settings import Model
from infra.errors import PermanentError
from trainer.contract import CONFIG_FILE, DATA_MOUNT


def model_on(data: Path) -> Model:
    """Return the functions for prepared data at `data`."""
    return Model(partial(evaluate, data=data), partial(export, data=data))


def evaluate(checkpoint: Path, data: Path = Path(DATA_MOUNT)) -> float:
    """Return the held-out loss of a checkpoint folder; raise `PermanentError`."""
    arguments = [
        "trainer.builtin.evaluate",
        "--checkpoint",
        str(checkpoint),
        "--config",
        CONFIG_FILE,
        "--data",
        str(data),
    ]
    answer = _run("the checkpoint could not be evaluated", arguments)
    if answer.get("recorded") is not None and not answer["equal"]:
        losses = f"{answer['evaluation_loss']}, recorded {answer['recorded']}"
        cure = "keep the cluster: compare the checkpoint's config and the image's versions"
        raise PermanentError("the checkpoint does not evaluate as it did in training", seen=losses, cure=cure)
    return float(str(answer["evaluation_loss"]))


def export(checkpoint: Path, target: Path, data: Path = Path(DATA_MOUNT)) -> None:
    """Write the checkpoint's model as safetensors with config and tokenizer; raise `PermanentError`."""
    arguments = ["trainer.builtin.checkpoint.convert.export", "--checkpoint", str(checkpoint), "--out", str(target)]
    _run("the model could not be exported", [*arguments, "--config", CONFIG_FILE, "--data", str(data)])


def _run(failure: str, arguments: list[str]) -> dict[str, object]:
    process = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True)
    if process.returncode != 0:
        raise PermanentError(failure, seen=process.stderr[-500:], cure="see above")
    answer: dict[str, object] = json.loads(process.stdout.strip().splitlines()[-1])
    return answer
