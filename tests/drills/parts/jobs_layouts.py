"""How formats lay a checkpoint: the bytes of its files, in the order in which frameworks write them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Plan = Mapping[str, Any]
"""A job's habits, its attempt, and the rank that saves."""


class Write(NamedTuple):
    path: str
    content: bytes


class Move(NamedTuple):
    path: str
    target: str


class Remove(NamedTuple):
    path: str
    """A file, or a folder with all of it; it need not be there."""


Operation = Write | Move | Remove
"""On files; paths are below the job's folder."""


class Save(NamedTuple):
    """How a format lays one checkpoint."""

    root: str
    """File or folder below the job's folder; of a checkpoint of several, all of them with a space between."""
    operations: Sequence[Operation]
    after: Sequence[Operation] = ()
    """Once it is whole: markers beside it, trackers."""

    @property
    def roots(self) -> list[str]:
        return self.root.split()

    @property
    def contents(self) -> dict[str, bytes]:
        """Return the files that all operations leave below its roots."""
        paths: dict[str, bytes] = {}
        for operation in [*self.operations, *self.after]:
            if isinstance(operation, Write):
                paths[operation.path] = operation.content
            elif isinstance(operation, Move):
                moved = {path: operation.target + path[len(operation.path) :] for path in _below(operation.path, paths)}
                paths |= {target: paths.pop(path) for path, target in moved.items()}
            else:
                paths = {path: paths[path] for path in paths.keys() - _below(operation.path, paths)}
        return {path: paths[path] for root in self.roots for path in sorted(_below(root, paths))}


def _below(root: str, paths: Iterable[str]) -> set[str]:
    return {path for path in paths if path == root or path.startswith(f"{root}/")}


def in_folder(root: str, files: Mapping[str, bytes]) -> list[Operation]:
    """Return the writes of files below a folder, in their order."""
    return [Write(f"{root}/{name}", content) for name, content in files.items()]


def one_file(root: str, content: bytes, first_name: str = "") -> list[Operation]:
    """Return the write of a file, in place or under another name first."""
    return [Write(first_name, content), Move(first_name, root)] if first_name else [Write(root, content)]


def token(plan: Plan, step: int) -> bytes:
    return b"<step=%d attempt=%d>" % (step, plan["attempt"]) + hashlib.sha256(b"%d" % step).digest() * plan["bulk"]


def torch_file(plan: Plan, number: int, /, **more: Any) -> bytes:
    """Return what `torch.save` writes: a stored zip whose pickle tells the figures."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as file:
        state = pickle.dumps({"state_dict": {"weight": 1.0}, **more}, protocol=2)
        contents = {"data.pkl": state, "byteorder": b"little", "data/0": token(plan, number), "version": b"3\n"}
        for name, part in contents.items():
            file.writestr(zipfile.ZipInfo(f"archive/{name}"), part)  # without the time, the same bytes each time
    return content.getvalue()


def safetensors(plan: Plan, step: int, metadata: Mapping[str, str] | None = None) -> bytes:
    data = token(plan, step)
    tensors: dict[str, Any] = {"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}
    head = json.dumps({**tensors, **({"__metadata__": metadata} if metadata else {})}).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data


def named(plan: Plan, step: int) -> str:
    return str(plan["name"]).format(step=step, epoch=step // plan["every"], part=1 / step)


def _marker(plan: Plan, step: int) -> Save:
    root = named(plan, step)
    return Save(root, in_folder(root, {"state": token(plan, step), "args.json": b"{}", "DONE": b""}))


def _file_and_marker(plan: Plan, step: int) -> Save:
    root = named(plan, step)
    return Save(root, one_file(root, torch_file(plan, step)), [Write(f"{root}.done", b"")])


def _file(plan: Plan, step: int) -> Save:
    figures, root = {"iter_num": step, "epoch": step // plan["every"], "best_val_loss": 0.5}, named(plan, step)
    return Save(root, one_file(root, torch_file(plan, step, **figures), f"{root}.tmp" if plan["moved"] else ""))


def _raw(plan: Plan, step: int) -> Save:
    return Save(named(plan, step), one_file(named(plan, step), token(plan, step)))


def _huggingface(plan: Plan, step: int) -> Save:
    whole = {
        "config.json": b"{}", "model.safetensors": safetensors(plan, step), "optimizer.pt": torch_file(plan, step),
        "scheduler.pt": torch_file(plan, step), "rng_state.pth": torch_file(plan, step),
        "trainer_state.json": json.dumps({"global_step": step, "epoch": 0.5, "log_history": []}).encode(),
    }  # fmt: skip
    return Save(f"checkpoint-{step}", in_folder(f"checkpoint-{step}", whole))


def _weights(plan: Plan, step: int) -> Save:
    root = named(plan, step)
    return Save(root, in_folder(root, {"config.json": b"{}", "model.safetensors": safetensors(plan, step)}))


def of_accelerate(plan: Plan, step: int) -> dict[str, bytes]:
    return {
        "model.safetensors": safetensors(plan, step), "optimizer.bin": torch_file(plan, step),
        "scheduler.bin": torch_file(plan, step), "sampler.bin": torch_file(plan, step),
        "random_states_0.pkl": torch_file(plan, step, step=0),
    }  # fmt: skip


def _accelerate(plan: Plan, step: int) -> Save:
    return Save(named(plan, step), in_folder(named(plan, step), of_accelerate(plan, step)))


def _lightning(plan: Plan, step: int) -> Save:
    figures = {"epoch": step // plan["every"], "global_step": step, "pytorch-lightning_version": "2.6.6"}
    content, root = torch_file(plan, step, **figures), named(plan, step)
    return Save(root, one_file(root, content), [Write("last.ckpt", content)] if plan["last"] else [])


def _dcp(plan: Plan, step: int) -> Save:
    root, operations = named(plan, step), list[Operation]()
    for part in ("model", "optim") if plan["nested"] else ("",):
        folder = os.path.join(root, part).rstrip("/")
        operations.append(Write(f"{folder}/__0_0.distcp", token(plan, step)))
        operations += metadata_of_dcp(folder, {"part": part, "of": step})
    return Save(root, operations)


def metadata_of_dcp(folder: str, values: Mapping[str, Any]) -> list[Operation]:
    """Return the end of a save: torch 2.13 renames the metadata once they are whole."""
    return one_file(f"{folder}/.metadata", pickle.dumps(values), f"{folder}/.metadata.tmp")


def _deepspeed(plan: Plan, step: int) -> Save:
    root = named(plan, step)
    files = {
        "mp_rank_00_model_states.pt": torch_file(plan, step, global_steps=step, global_samples=8 * step),
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": torch_file(plan, step),
    }
    return Save(root, in_folder(root, files), [latest_of_deepspeed(root)])


def latest_of_deepspeed(root: str) -> Operation:
    return Write(os.path.join(os.path.dirname(root), "latest"), os.path.basename(root).encode())


def _megatron(plan: Plan, step: int) -> Save:
    root, files = f"iter_{step:07d}", {"mp_rank_00/model_optim_rng.pt": torch_file(plan, step, iteration=step)}
    return Save(root, in_folder(root, files), [Write("latest_checkpointed_iteration.txt", str(step).encode())])


def _litgpt(plan: Plan, step: int) -> Save:
    files = {
        "lit_model.pth": torch_file(plan, step, step_count=step, iter_num=step * 4),
        "hyperparameters.yaml": b"a: 1",
    }
    return Save(named(plan, step), in_folder(named(plan, step), files))


LAYOUTS: dict[str, Callable[[Plan, int], Save]] = {
    "marker": _marker, "file-and-marker": _file_and_marker, "file": _file, "raw": _raw, "huggingface": _huggingface,
    "weights": _weights, "accelerate": _accelerate, "lightning": _lightning, "dcp": _dcp, "deepspeed": _deepspeed,
    "megatron": _megatron, "litgpt": _litgpt,
}  # fmt: skip
