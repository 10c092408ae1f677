"""Finished checkpoints of well-known formats in a job's own folder.

Each format ends a checkpoint with one write that comes last. Only what that write has named counts as finished.
"""

from __future__ import annotations

import contextlib
import glob
import re
import shutil
from pathlib import Path
from typing import Callable, Iterator, NamedTuple


class Finished(NamedTuple):
    """A checkpoint that its framework has finished."""

    step: int
    root: Path
    """File or folder that holds all of it."""


def _dcp(folder: Path) -> Iterator[Finished]:
    """PyTorch's distributed checkpoints: `.metadata` appears by rename, after every rank's file."""
    for metadata in folder.glob("*/.metadata"):
        yield from _numbered(metadata.parent)


def _huggingface(folder: Path) -> Iterator[Finished]:
    """Hugging Face's Trainer: `trainer_state.json` is the last file of `checkpoint-N` but the ranks' random states."""
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        yield from _numbered(state.parent)


def _lightning(folder: Path) -> Iterator[Finished]:
    """Lightning: one `.ckpt` file, written under its own name; `step=N` in it."""
    for path in folder.rglob("*.ckpt"):
        match = re.search(r"step=(\d+)", path.name)
        if match:
            yield Finished(int(match.group(1)), path)


def _tracked(name: str, pattern: str) -> Callable[[Path], Iterator[Finished]]:
    """A tracker file names the newest checkpoint after all of its files."""

    def find(folder: Path) -> Iterator[Finished]:
        try:
            named = (folder / name).read_text().strip()
        except OSError:
            return
        step = re.search(r"(\d+)$", named)
        if step and (root := folder / pattern.format(named=named, step=int(step.group(1)))).is_dir():
            yield Finished(int(step.group(1)), root)

    return find


def _marker(folder: Path) -> Iterator[Finished]:
    """A marker of one's own: an empty file `DONE` in a folder whose name ends in the step."""
    for done in folder.glob("*/DONE"):
        yield from _numbered(done.parent)


def forget_later(name: str, folder: Path, chosen: Finished | None) -> None:
    """Remove checkpoints after the chosen one (None: all), and let a tracker file name it. Of those that were being
    written only folders are known that are named as the chosen one is."""
    later = list(FORMATS[name](folder)) if folder.is_dir() else []
    if chosen is not None:
        like = chosen.root.name.rstrip("0123456789")
        later += [one for path in chosen.root.parent.glob(glob.escape(like) + "*") for one in _numbered(path)]
    for found in later:
        if chosen is None or found.step > chosen.step:
            shutil.rmtree(found.root, ignore_errors=True) if found.root.is_dir() else _unlink(found.root)
    if name in _TRACKERS:
        tracker, text = _TRACKERS[name]
        if chosen is None:
            _unlink(folder / tracker)
        else:
            (folder / tracker).write_text(text.format(named=chosen.root.name, step=chosen.step))


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _numbered(root: Path) -> Iterator[Finished]:
    match = re.search(r"(\d+)$", root.name)
    if match:
        yield Finished(int(match.group(1)), root)


_TRACKERS = {"megatron": ("latest_checkpointed_iteration.txt", "{step}"), "deepspeed": ("latest", "{named}")}
"""Format -> file that names the newest checkpoint, and what it says."""
FORMATS: dict[str, Callable[[Path], Iterator[Finished]]] = {
    "dcp": _dcp,
    "huggingface": _huggingface,
    "lightning": _lightning,
    "megatron": _tracked("latest_checkpointed_iteration.txt", "iter_{step:07d}"),
    "deepspeed": _tracked("latest", "{named}"),
    "marker": _marker,
    "client": lambda folder: iter(()),
}
