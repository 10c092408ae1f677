"""Checkpoints as each framework writes them, and a job's folder in which the supervisor looks for them."""

from __future__ import annotations

import json
import pickle
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import Recogniser


def saved(path: Path, **values: object) -> Path:
    """As `torch.save` writes a dictionary: a zip whose directory comes last, with the pickle first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{path.stem}/data.pkl", pickle.dumps(values, protocol=2))
        file.writestr(f"{path.stem}/data/0", b"0" * 4096)
    return path


def half(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def safetensors(path: Path, size: int = 64, **metadata: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}, "__metadata__": metadata}
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"1" * size)
    return path


class SettledRecogniser(Recogniser):
    """Takes each version for settled, until a test says otherwise."""

    settles_at_once = True

    def _is_settled(self, sight: Any) -> bool:
        return self.settles_at_once or super()._is_settled(sight)


class WatchedJob:
    """A job's folder, and looks at it at which nothing needs to settle."""

    def __init__(self, folder: Path, form: str = "auto") -> None:
        self.folder, self.form, self.recogniser, self.committed = folder, form, SettledRecogniser(), -1

    def at(self, step: int) -> None:
        """Let the job tell a step, some seconds ago: what is written now is written after it."""
        self.recogniser.told_steps.note(step, time.time() - 1)

    def look(self, ranks: int = 1) -> list[tuple[int, str]]:
        """Return what is sealed at this look: each step with its root."""
        candidates = list(self.recogniser.finished_checkpoints(self.form, self.folder, ranks, self.committed))
        for candidate in sorted(candidates):
            if candidate.step > self.committed:
                self.committed = candidate.step
                self.recogniser.note_sealed(candidate)
        return [(candidate.step, str(candidate.root.relative_to(self.folder))) for candidate in candidates]


@pytest.fixture
def job(tmp_path: Path) -> WatchedJob:
    return WatchedJob(tmp_path / "own")


def dcp(root: Path, metadata: bool = True) -> None:
    put(root / "__0_0.distcp")
    if metadata:
        put(root / ".metadata")


def huggingface(root: Path, optimizer: bool = True) -> None:
    safetensors(root / "model.safetensors"), saved(root / "training_args.bin")
    if optimizer:
        saved(root / "optimizer.pt"), saved(root / "rng_state.pth")
    put(root / "trainer_state.json", json.dumps({"global_step": int(root.name.partition("-")[2]), "log_history": []}))


def accelerate(root: Path) -> None:
    safetensors(root / "model.safetensors"), saved(root / "optimizer.bin"), saved(root / "random_states_0.pkl", step=0)


def deepspeed(root: Path, steps: int) -> None:
    saved(root / "mp_rank_00_model_states.pt", global_steps=steps)
    saved(root / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    put(root.parent / "latest", root.name)


KINDS: dict[str, tuple[Callable[[Path], object], tuple[int, str], str]] = {
    "DCP in two folders below a run": (
        lambda own: (dcp(own / "run-a/step-30/model"), dcp(own / "run-a/step-30/optim")),
        (30, "run-a/step-30"), "run-a/step-30/optim/.metadata",
    ),
    "torchtitan": (
        lambda own: dcp(own / "checkpoint/step-30"), (30, "checkpoint/step-30"), "checkpoint/step-30/.metadata",
    ),
    "lingua": (lambda own: dcp(own / "0000000030"), (30, "0000000030"), "0000000030/.metadata"),
    "Hugging Face": (
        lambda own: huggingface(own / "checkpoint-30"), (30, "checkpoint-30"), "checkpoint-30/trainer_state.json",
    ),
    "Hugging Face, weights only": (
        lambda own: huggingface(own / "out/checkpoint-30", optimizer=False),
        (30, "out/checkpoint-30"), "out/checkpoint-30/trainer_state.json",
    ),
    "Accelerate with names of steps": (
        lambda own: accelerate(own / "step_30"), (30, "step_30"), "step_30/random_states_0.pkl",
    ),
    "DeepSpeed": (
        lambda own: deepspeed(own / "run/global_step30", 30), (30, "run/global_step30"),
        "run/latest",
    ),
    "DeepSpeed with a fixed tag": (
        lambda own: deepspeed(own / "mine", 30), (30, "mine"), "latest",
    ),
    "Megatron": (
        lambda own: (
            saved(own / "iter_0000030/mp_rank_00/model_optim_rng.pt"),
            put(own / "latest_checkpointed_iteration.txt", "30"),
        ),
        (30, "iter_0000030"), "latest_checkpointed_iteration.txt",
    ),
    "Lightning without a step in its name": (
        lambda own: saved(own / "version_0/checkpoints/epoch=3-val_loss=0.12.ckpt", epoch=3, global_step=30),
        (30, "version_0/checkpoints/epoch=3-val_loss=0.12.ckpt"), "version_0/checkpoints/epoch=3-val_loss=0.12.ckpt",
    ),
    "Lightning's last": (lambda own: saved(own / "last.ckpt", global_step=30), (30, "last.ckpt"), "last.ckpt"),
    "nanoGPT": (
        lambda own: saved(own / "ckpt.pt", iter_num=30, config={"iter_num": 9, "step": 8}), (30, "ckpt.pt"), "ckpt.pt",
    ),
    "a snapshot below Hydra's folder of a run": (
        lambda own: saved(own / "2025-11-25/12-30-00/snapshot.pt", step=30),
        (30, "2025-11-25/12-30-00/snapshot.pt"), "2025-11-25/12-30-00/snapshot.pt",
    ),
    "one file each": (lambda own: saved(own / "ckpt_30.pt"), (30, "ckpt_30.pt"), "ckpt_30.pt"),
    "nanochat": (
        lambda own: (
            saved(own / "d12/model_000030.pt"), saved(own / "d12/optim_000030_rank0.pt"),
            put(own / "d12/meta_000030.json"),
        ),
        (30, "d12"), "d12/optim_000030_rank0.pt",
    ),
    "litgpt": (
        lambda own: (saved(own / "step-00000030/lit_model.pth"), put(own / "step-00000030/model_config.yaml")),
        (30, "step-00000030"), "step-00000030/lit_model.pth",
    ),
    "safetensors in folders": (
        lambda own: (safetensors(own / "step_30/model.safetensors"), put(own / "step_30/config.json", "{}")),
        (30, "step_30"), "step_30/model.safetensors",
    ),
    "safetensors in place": (
        lambda own: safetensors(own / "model.safetensors", step="30"), (30, "model.safetensors"), "model.safetensors",
    ),
    "folders of digits": (lambda own: saved(own / "30/model.pt"), (30, "30"), "30/model.pt"),
    "a marker in a folder": (
        lambda own: (put(own / "save-30/state"), put(own / "save-30/DONE", "")), (30, "save-30"), "save-30/DONE",
    ),
    "a marker beside a file": (
        lambda own: (put(own / "ckpt_30.pt", "no zip"), put(own / "ckpt_30.pt.done", "")),
        (30, "ckpt_30.pt"), "ckpt_30.pt",
    ),
}  # fmt: skip
"""How it is written, what is sealed, and the file without which it is not finished."""

BESIDE = (
    "tokenizer-32000/tokenizer.json", "tensorboard-20251125/events.out.tfevents.1", "vocab_50257/vocab.bin",
    "hparams_20251125/hparams.yaml", "eval-results-5000/metrics.json", "logs/version_0/events.out.tfevents.2",
    "wandb/run-20251125_103000-abc/files/model.pt.txt", "data_2024/train.bin", "seed_7/notes.txt", "README.md",
)  # fmt: skip
"""Files that lie beside checkpoints and are none."""
