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
    return Model(partial(evaluate, data=data))


def evaluate(checkpoint: Path, target: Path | None = None, data: Path = Path(DATA_MOUNT)) -> float:
    """Return the held-out loss of a checkpoint folder; raise `PermanentError`. Into `target` the same process writes
    the model as safetensors with config and tokenizer: another one would import torch again."""
    arguments = ["--checkpoint", str(checkpoint), "--config", CONFIG_FILE, "--data", str(data)]
    answer = _run([*arguments, *(["--export", str(target)] if target else [])])
    if answer.get("recorded") is not None and not answer["equal"]:
        losses = f"{answer['evaluation_loss']}, recorded {answer['recorded']}"
        cure = "keep the cluster: compare the checkpoint's config and the image's versions"
        raise PermanentError("the checkpoint does not evaluate as it did in training", seen=losses, cure=cure)
    return float(str(answer["evaluation_loss"]))


def _run(arguments: list[str]) -> dict[str, object]:
    command = [sys.executable, "-m", "trainer.builtin.evaluate", *arguments]
    process = subprocess.run(command, capture_output=True, text=True)
    # It answers before it exports; libraries may print beside it.
    answers = [line for line in process.stdout.splitlines() if line.startswith("{") and '"evaluation_loss"' in line]
    if process.returncode != 0:
        failure = "the model could not be exported" if answers else "the checkpoint could not be evaluated"
        raise PermanentError(failure, seen=process.stderr[-500:], cure="see above")
    answer: dict[str, object] = json.loads(answers[-1])
    return answer
