"""Checkpoints of which several stand in one folder: those that a tracker file names, and files."""

from __future__ import annotations

import fnmatch
import re
from functools import partial
from pathlib import Path
from typing import AbstractSet, Iterator

from trainer.supervisor.formats import content
from trainer.supervisor.formats.layouts import (
    CLOCKS_S,
    DEEPSPEED_TRACKER,
    EACH_RANK,
    ENDED_BY_OTHERS,
    MEGATRON_TRACKER,
    NANOTRON_TRACKER,
    OF_STATE,
    Candidate,
    View,
    each_rank,
    is_state,
    whole,
)  # fmt: skip
from trainer.supervisor.formats.names import PLAIN, number_of
from trainer.supervisor.formats.tree import listing

_WEIGHTS = ("model", "pytorch_model", "adapter_model")
_OF_EXPORT = re.compile(r"config.*\.json$|\.index\.json$|^tokenizer|^vocab|^special_tokens|^merges|^chat_template")
"""What belongs to weights that `save_pretrained` has written."""
_RANDOM = ("random_states", "rng_state")


def tracked(kinds: AbstractSet[str], view: View) -> Iterator[Candidate]:
    """A tracker file names the newest checkpoint after all of its files."""
    files = view.entries.files
    if "megatron" in kinds and MEGATRON_TRACKER in files:
        named = _text(view.path / MEGATRON_TRACKER)
        for name in fnmatch.filter(view.entries.folders, "iter_*"):
            now = named.isdecimal() and name == f"iter_{int(named):07d}"
            yield Candidate("megatron", view.path / name, partial(bool, now))
    for kind, tracker in (("deepspeed", DEEPSPEED_TRACKER), ("nanotron", NANOTRON_TRACKER)):
        named = _text(view.path / tracker) if kind in kinds and tracker in files else ""
        if named in view.entries.folders:
            yield from _named(kind, view, named)


def _named(kind: str, view: View, named: str) -> Iterator[Candidate]:
    """DeepSpeed's tag may be a name that stays: its folder is then written again, and its files tell the step."""
    root = view.path / named
    below = View(root, listing(root), False, view.ranks, view.alone)
    states = below.matching("*_states.pt")
    if kind == "deepspeed" and not (states or view.alone):
        return
    optimizer = below.matching(EACH_RANK["deepspeed"])

    models = [path for path in states if path.name.endswith("model_states.pt")]

    def ready() -> bool:
        """All ranks meet between the files of the model and those of the optimizer: older ones are of the last save."""
        begun = max((path.stat().st_mtime for path in models), default=0.0)
        return (
            (not optimizer or each_rank(optimizer, view.ranks))
            and whole(states)
            and all(path.stat().st_mtime >= begun - CLOCKS_S for path in optimizer)
        )

    yield Candidate(kind, root, ready, settles=below.number is None or kind == "nanotron", told_in=tuple(models[:1]))
    if kind == "deepspeed":
        for name in view.entries.folders - {named}:
            if any(each.endswith("_states.pt") for each in listing(view.path / name).files):
                yield Candidate(kind, view.path / name, partial(bool, False))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()
    except OSError:
        return ""


def files(kinds: AbstractSet[str], view: View) -> Iterator[Candidate]:
    """Files that are a checkpoint each, or together with others of the same number."""
    numbered: dict[int, list[str]] = {}
    alone: list[str] = []
    marks = {name[: -len(end)] for end in (".done", ".DONE") for name in view.entries.files if name.endswith(end)}
    plain = "folder" in kinds and not any(map(number_of, marks))  # who marks files marks each of them
    for name in sorted(view.entries.files):
        path = view.path / name
        if name in marks and "marker" in kinds:
            if number_of(name) or "folder" in kinds:
                yield Candidate("marker", path, partial(whole, [path]), told_in=(path,))
        elif name.endswith(".ckpt") and "lightning" in kinds and not marks:
            yield Candidate("lightning", path, partial(each_rank, [path], 1), told_in=(path,))
        elif plain and is_state(name) and not ENDED_BY_OTHERS.search(name) and not name.startswith(_RANDOM):
            number = number_of(name)
            if number is not None and (number.kind != PLAIN or OF_STATE.search(name)):
                numbered.setdefault(number.value, []).append(name)
            elif OF_STATE.search(name):
                alone.append(name)
    for value, names in numbered.items():
        if len(names) > 1:  # what else belongs to them, such as `meta_000030.json`
            others = (name for name in view.entries.files if name.endswith(".json"))
            names += [name for name in sorted(others) if (number := number_of(name)) and number.value == value]
        yield _of_files(view, tuple(view.path / name for name in names))
    told = [name for name in alone if content.step_in(view.path / name) is not None]
    for name in told:
        yield _of_files(view, (view.path / name,))
    rest = [name for name in alone if name not in told]
    if any(name.startswith(_WEIGHTS) for name in rest):
        rest += [name for name in sorted(view.entries.files) if _OF_EXPORT.search(name)]
    if rest:
        yield _of_files(view, tuple(view.path / name for name in rest))


def _of_files(view: View, paths: tuple[Path, ...]) -> Candidate:
    """Return the candidate of files of one number, or of none. One file that shows that it is whole needs no more."""
    if len(paths) > 1:
        return Candidate("file", view.path, partial(whole, paths), paths, settles=True, told_in=paths)
    unclear = content.state(paths[0]) == content.UNCLEAR
    return Candidate("file", paths[0], partial(whole, paths), settles=unclear, told_in=paths)
