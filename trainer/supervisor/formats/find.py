"""The formats by their names: what a spec may ask for, and what is finished of it in a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import AbstractSet, Callable, Iterator

from trainer.supervisor.formats.files import files, tracked
from trainer.supervisor.formats.layouts import FOLDERS, Candidate, View
from trainer.supervisor.formats.tree import Finished, listing

Find = Callable[..., Iterator[Finished]]
"""From a job's folder, the number of its ranks (0: not known), and the newest step that is sealed already (-1: none;
up to that one all are yielded, without a look into them) to what is finished: `step` is -1 where nothing tells it."""
_ALONE = ("dcp", "huggingface", "accelerate", "lightning", "megatron", "deepspeed", "marker")
_DEEPEST = 8
KINDS: dict[str, frozenset[str]] = {name: frozenset({name}) for name in _ALONE}
"""Format of a spec -> the layouts that it recognises."""
KINDS["client"] = frozenset()
KINDS["auto"] = frozenset().union(*KINDS.values()) | {"nanotron", "folder"}


def candidates(folder: Path, ranks: int, kinds: AbstractSet[str], depth: int = 0) -> Iterator[Candidate]:
    """Yield what the formats `kinds` know as checkpoints below a job's folder. A checkpoint's own folders are not
    searched, nor what hides behind a dot or a link. Raises `OSError`."""
    try:
        view = View(folder, listing(folder), depth == 0, ranks, len(kinds) == 1)
    except PermissionError:  # the account says so
        return
    for kind, rule in FOLDERS:
        if kind in kinds and (found := rule(view)) is not None:
            yield found
            return
    named = list(tracked(kinds, view))
    yield from named
    yield from files(kinds, view)
    known = {found.root.name for found in named}
    for name in sorted(view.entries.folders - known):
        if depth < _DEEPEST and not name.startswith("."):
            yield from candidates(folder / name, ranks, kinds, depth + 1)


def _finished(name: str, folder: Path, ranks: int, above: int = -1) -> Iterator[Finished]:
    """Raises `OSError`."""
    for candidate in candidates(folder, ranks, KINDS[name]) if KINDS[name] else ():
        found = candidate.finished()
        if 0 <= found.step <= above or candidate.ready():
            yield found


FORMATS: dict[str, Find] = {name: partial(_finished, name) for name in KINDS}
