"""The formats by their names: what a spec may ask for, and what is finished of it in a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Callable, Iterator

from trainer.supervisor.formats.layouts import candidates
from trainer.supervisor.formats.tree import Finished

Find = Callable[..., Iterator[Finished]]
"""From a job's folder, the number of its ranks (0: not known), and the newest step that is sealed already (-1: none;
up to that one all are yielded, without a look into them) to what is finished: `step` is -1 where nothing tells it."""
_ALONE = ("dcp", "huggingface", "accelerate", "lightning", "megatron", "deepspeed", "marker")
KINDS: dict[str, frozenset[str]] = {name: frozenset({name}) for name in _ALONE}
"""Format of a spec -> the layouts that it recognises."""
KINDS["client"] = frozenset()
KINDS["auto"] = frozenset().union(*KINDS.values()) | {"nanotron", "folder"}


def _finished(name: str, folder: Path, ranks: int, above: int = -1) -> Iterator[Finished]:
    """Raises `OSError`."""
    for candidate in candidates(folder, ranks, KINDS[name]) if KINDS[name] else ():
        found = candidate.finished()
        if 0 <= found.step <= above or candidate.ready():
            yield found


FORMATS: dict[str, Find] = {name: partial(_finished, name) for name in KINDS}
