"""`bivouac init --script` proposes a workload that passes `check`; a trial measures it, or says why it does not run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from infra.cli.main import app
from infra.cli.prepare.checked import checked
from infra.cli.prepare.script import look_at
from infra.errors import UserError
from infra.plan.checks import failed
from tests.root import ROOT

NANO = """
import argparse, os, torch
import torch.nn as nn
parser = argparse.ArgumentParser()
parser.add_argument("--out-dir", default="out")
parser.add_argument("--max_iters", type=int, default=600)
device = "cuda"
for iter_num in range(600):
    loss = torch.tensor(1.0)
    print(f"iter {iter_num}: loss {loss.item() * 1:.4f}, time {3:.2f}ms, mfu {1:.2f}%")
    if iter_num % 100 == 0:
        torch.save({}, os.path.join("out", "ckpt.pt"))
"""
RUN_CLM = """
from dataclasses import dataclass
from transformers import HfArgumentParser, Trainer, TrainingArguments
args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
trainer = Trainer(model=None, args=args)
trainer.train()
"""
LIGHTNING = """
import lightning as L
from lightning.pytorch.cli import LightningCLI
LightningCLI()
"""
LOGGING = """
import logging
import torch.distributed as dist
from accelerate import Accelerator
log = logging.getLogger(__name__)
NUM_STEPS: int = 80
for epoch in range(3):
    for step in range(80):
        log.info("epoch %d | step %5d/%d | train loss %.3f", epoch, step, NUM_STEPS, 0.5)
        print("Evaluation of epoch", epoch, "accuracy", 0.1)
"""
SOLVER = """
from mpi4py import MPI
import numpy, solver_of_ours_that_is_nowhere
for it in range(10):
    print("step", it, "residual", 0.1)
"""
EPOCHS = """
import bivouac, torch
steps = 30
for i in range(steps):
    print("Step [{}/{}], Loss: {:.4f}".format(i + 1, steps, 1.5))
"""
SILENT = "import torch\nwhile True:\n    pass\n"


def init(path: Path, script: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    done = CliRunner().invoke(app, ["init", str(path), "--script", str(script), *options])
    words = done.output + str(done.exception or "")
    return done.exit_code, words, yaml.safe_load(path.read_text())["workload"] if path.exists() else {}


@pytest.mark.parametrize("target", ["rehearsal", "aws"])
@pytest.mark.parametrize(
    ("text", "wanted", "line", "told"),
    [
        (NANO, {"launcher": "none", "command": ["python3", "-u", "train.py"], "checkpoints": {"keep": 3},
                "args": ["--out-dir", "${BIVOUAC_CHECKPOINTS}"], "steps": 600},
         "iter 250: loss 3.2100, time 12.00ms, mfu 3.00%", {"step": "250", "loss": "3.2100"}),
        (RUN_CLM, {"launcher": "torchrun", "script": "train.py", "checkpoints": {"format": "huggingface"},
                   "args": ["--output_dir", "${BIVOUAC_CHECKPOINTS}"]},
         "  5%|#   | 12/80 [00:03<00:12, 2.1it/s]", {"step": "12"}),
        (LIGHTNING, {"launcher": "torchrun", "checkpoints": {"format": "lightning"}},
         "Epoch 0: 50%|##| 5/10 [00:01<00:01, v_num=0]", {"step": "5"}),
        (LOGGING, {"launcher": "torchrun", "checkpoints": {"keep": 3}, "steps": 80},
         "2026-01-01 INFO epoch 2 | step    17/80 | train loss 1.5e-3", {"step": "17", "loss": "1.5e-3"}),
        (SOLVER, {"launcher": "mpirun", "command": ["python3", "-u", "train.py"]},
         "step 7 residual 0.1", {"step": "7"}),
        (EPOCHS, {"launcher": "none", "steps": 30}, "Step [3/30], Loss: -0.2500", {"step": "3", "loss": "-0.2500"}),
    ],
    ids=["nano", "clm", "lightning", "logging", "mpi", "format"],
)  # fmt: skip
def test_a_script_of_each_habit_gets_a_spec_that_passes_check(
    text: str, wanted: dict[str, Any], line: str, told: dict[str, str], target: str, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/train.py").write_text(text)
    aws = [
        "--target=aws",
        "--account=111122223333",
        "--zone=us-east-1b",
        "--api-cidr=203.0.113.7/32",
        "--email=a@b.org",
    ]
    if target == "aws" and wanted["launcher"] == "mpirun":
        pytest.skip("on AWS it needs an image with Open MPI, which check says")
    code, words, workload = init(tmp_path / "mine.yaml", tmp_path / "job", *(aws if target == "aws" else ()))
    assert code == 0, words
    assert not failed(checked(tmp_path / "mine.yaml").findings)
    assert {name: workload[name] for name in wanted if name != "steps"} | {"steps": workload["estimates"]["steps"]} == {
        "steps": 110 if target == "rehearsal" else 2000, **wanted
    }  # fmt: skip
    match = re.search(workload["progress"]["pattern"], line)
    assert match is not None and {name: one for name, one in match.groupdict().items() if one is not None} == told
    assert ("lacks: solver_of_ours" in words.replace("\n", " ")) == (text is SOLVER)
    assert ("insists on CUDA" in words) == (text is NANO)


def test_json_lines_need_no_pattern_and_a_script_that_prints_no_step_is_told(tmp_path: Path) -> None:
    code, _, workload = init(tmp_path / "ddp.yaml", ROOT / "trainer/examples/ddp/train.py")
    assert code == 0 and "progress" not in workload and workload["launcher"] == "torchrun"
    (tmp_path / "silent.py").write_text(SILENT)
    code, words, workload = init(tmp_path / "silent.yaml", tmp_path / "silent.py")
    assert code == 0 and "no printed step was found" in words and "progress" not in workload


def test_modules_at_the_projects_root_make_it_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"scripts/train.py": "from mine.loop import run\n", "mine/loop.py": "import torch.distributed\n"}
    for name, text in {**files, "mine/__init__.py": "", "requirements.txt": "einops\n"}.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("mine/loop.py").write_text("import torch.distributed\ndef run(): pass\n")
    code, words, workload = init(tmp_path / "mine.yaml", Path("scripts/train.py"))
    assert code == 0, words
    assert (workload["source"], workload["script"], workload["launcher"]) == (
        str(tmp_path),
        "scripts/train.py",
        "torchrun",
    )
    assert workload["env"]["PYTHONPATH"] == "/workspace" and workload["requirements"] == "requirements.txt"


def test_what_is_no_script_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def (:\n")
    for script in (tmp_path, tmp_path / "absent.py"):
        with pytest.raises(UserError, match=r"no Python|no such script"):
            look_at(script)
        assert init(tmp_path / "mine.yaml", script)[0] != 0 and not (tmp_path / "mine.yaml").exists()


JOB = """
import json, os, pathlib, time
folder = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"])
for step in range(1, {steps} + 1):
    time.sleep(0.1)
    print(json.dumps({{"step": step}}))
    if step % 5 == 0:
        here = folder / f"save-{{step}}"
        here.mkdir(parents=True)
        (here / "state").write_bytes(b"x" * 2**20)
        (here / "DONE").touch()
"""


@pytest.mark.parametrize("steps", [8, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_a_trial_writes_what_it_has_measured_and_leaves_the_scripts_folder_as_it_was(
    steps: int, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/train.py").write_text(JOB.format(steps=steps))
    code, words, workload = init(tmp_path / "mine.yaml", tmp_path / "job", "--try")
    assert code == 0, words
    estimates = workload["estimates"]
    assert estimates["step_seconds"] > 0.05 and estimates["step_seconds"] != 1.0, (
        "a step sleeps for 0.1 s; 1.0 is the guess"
    )
    assert estimates["checkpoint_gib"] == pytest.approx(2**-10, rel=0.01)
    assert estimates["steps"] == (8 if steps == 8 else 110), "a job that ends by itself tells its number of steps"
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("raise RuntimeError('Found no NVIDIA driver on your system.')", "no NVIDIA driver.*torch.cuda.is_available"),
        pytest.param("import of_nowhere", "No module named 'of_nowhere'.*requirements.txt", marks=pytest.mark.nightly),
        pytest.param("raise KeyError('data/tokens.bin')", "KeyError.*leave out --try", marks=pytest.mark.nightly),
    ],
)
def test_a_script_that_does_not_run_here_says_its_first_failure_and_writes_nothing(
    line: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"import json\nprint(json.dumps({{'step': 0}}))\n{line}\n")
    code, words, _ = init(tmp_path / "mine.yaml", tmp_path / "train.py", "--try")
    assert code != 0 and re.search(told, words, re.DOTALL), words
    assert not (tmp_path / "mine.yaml").exists()


def test_a_trial_finds_the_modules_at_the_projects_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts").mkdir(), (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("")
    (tmp_path / "mine/loop.py").write_text(JOB.format(steps=6))
    (tmp_path / "scripts/train.py").write_text("import mine.loop\n")
    code, words, workload = init(tmp_path / "mine.yaml", Path("scripts/train.py"), "--try")
    assert code == 0 and workload["estimates"]["steps"] == 6, words
