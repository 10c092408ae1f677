"""How formats lay a checkpoint: the bytes of its files, in the order in which frameworks write them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Plan = Mapping[str, Any]
"""A job's habits, and its attempt."""


class Save(NamedTuple):
    """How a format lays one checkpoint."""

    root: str
    """Below the job's folder: file or folder."""
    files: dict[str, bytes]
    """Below root, in the order of writing; the empty name is root itself."""
    after: dict[str, bytes]
    """Below the job's folder, written last: markers beside it, trackers."""
    moved: bool = False
    """It is written under another name and moved."""


def token(plan: Plan, step: int) -> bytes:
    return b"<step=%d attempt=%d>" % (step, plan["attempt"]) + hashlib.sha256(b"%d" % step).digest() * plan["bulk"]


def torch_file(plan: Plan, number: int, /, **more: Any) -> bytes:
    """Return what `torch.save` writes: a stored zip whose pickle tells the figures."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", pickle.dumps({"state_dict": {"weight": 1.0}, **more}, protocol=2))
        file.writestr("archive/byteorder", b"little")
        file.writestr("archive/data/0", token(plan, number))
        file.writestr("archive/version", b"3\n")
    return content.getvalue()


def safetensors(plan: Plan, step: int) -> bytes:
    data = token(plan, step)
    head = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data


def named(plan: Plan, step: int) -> str:
    return str(plan["name"]).format(step=step, epoch=step // plan["every"], part=1 / step)


def _marker(plan: Plan, step: int) -> Save:
    return Save(named(plan, step), {"state": token(plan, step), "args.json": b"{}", "DONE": b""}, {})


def _file_and_marker(plan: Plan, step: int) -> Save:
    return Save(named(plan, step), {"": torch_file(plan, step)}, {named(plan, step) + ".done": b""})


def _file(plan: Plan, step: int) -> Save:
    figures = {"iter_num": step, "epoch": step // plan["every"], "best_val_loss": 0.5}
    return Save(named(plan, step), {"": torch_file(plan, step, **figures)}, {}, moved=plan["moved"])


def _raw(plan: Plan, step: int) -> Save:
    return Save(named(plan, step), {"": token(plan, step)}, {})


def _huggingface(plan: Plan, step: int) -> Save:
    whole = {
        "config.json": b"{}", "model.safetensors": safetensors(plan, step), "optimizer.pt": torch_file(plan, step),
        "scheduler.pt": torch_file(plan, step), "rng_state.pth": torch_file(plan, step),
        "trainer_state.json": json.dumps({"global_step": step, "epoch": 0.5, "log_history": []}).encode(),
    }  # fmt: skip
    return Save(f"checkpoint-{step}", whole, {})


def _weights(plan: Plan, step: int) -> Save:
    return Save(named(plan, step), {"config.json": b"{}", "model.safetensors": safetensors(plan, step)}, {})


def _accelerate(plan: Plan, step: int) -> Save:
    whole = {
        "model.safetensors": safetensors(plan, step), "optimizer.bin": torch_file(plan, step),
        "scheduler.bin": torch_file(plan, step), "sampler.bin": torch_file(plan, step),
        "random_states_0.pkl": torch_file(plan, step, step=0),
    }  # fmt: skip
    return Save(named(plan, step), whole, {})


def _lightning(plan: Plan, step: int) -> Save:
    figures = {"epoch": step // plan["every"], "global_step": step, "pytorch-lightning_version": "2.6.6"}
    last = {"last.ckpt": torch_file(plan, step, **figures)} if plan["last"] else {}
    return Save(named(plan, step), {"": torch_file(plan, step, **figures)}, last)


def _dcp(plan: Plan, step: int) -> Save:
    parts = ("model", "optim") if plan["nested"] else ("",)
    files: dict[str, bytes] = {}
    for part in parts:
        files[os.path.join(part, "__0_0.distcp")] = token(plan, step)
        files[os.path.join(part, ".metadata")] = pickle.dumps({"part": part, "of": step})
    return Save(named(plan, step), files, {})


def _deepspeed(plan: Plan, step: int) -> Save:
    name = named(plan, step)
    files = {
        "mp_rank_00_model_states.pt": torch_file(plan, step, global_steps=step, global_samples=8 * step),
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": torch_file(plan, step),
    }
    return Save(name, files, {os.path.join(os.path.dirname(name), "latest"): os.path.basename(name).encode()})


def _megatron(plan: Plan, step: int) -> Save:
    files = {"mp_rank_00/model_optim_rng.pt": torch_file(plan, step, iteration=step)}
    return Save(f"iter_{step:07d}", files, {"latest_checkpointed_iteration.txt": str(step).encode()})


def _litgpt(plan: Plan, step: int) -> Save:
    files = {
        "lit_model.pth": torch_file(plan, step, step_count=step, iter_num=step * 4),
        "hyperparameters.yaml": b"a: 1",
    }
    return Save(named(plan, step), files, {})


LAYOUTS: dict[str, Callable[[Plan, int], Save]] = {
    "marker": _marker, "file-and-marker": _file_and_marker, "file": _file, "raw": _raw, "huggingface": _huggingface,
    "weights": _weights, "accelerate": _accelerate, "lightning": _lightning, "dcp": _dcp, "deepspeed": _deepspeed,
    "megatron": _megatron, "litgpt": _litgpt,
}  # fmt: skip


def save_of(plan: Plan, attempt: int, step: int) -> Save:
    """Return the checkpoint that an attempt of a job saves at a step."""
    return LAYOUTS[plan["layout"]]({**plan, "attempt": attempt}, step)
