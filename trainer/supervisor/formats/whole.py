"""The files of a checkpoint: all of them, those that are still missing, and those of a newer one."""

from __future__ import annotations

import fnmatch
import glob
import re
from pathlib import Path
from typing import Iterable

from trainer.supervisor.formats.find import KINDS
from trainer.supervisor.formats.layouts import EACH_RANK, each_rank
from trainer.supervisor.formats.tree import Finished


def files_of(root: Path) -> list[Path]:
    """Return all files of a checkpoint, a file or a folder."""
    return [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())


def whole_ranks(name: str, files: Iterable[Path], ranks: int, like: Iterable[str]) -> bool:
    """Return whether the files that a format writes once per rank are here and whole, for so many ranks (0: not known).
    The format's last file may appear before them. `like`: names among which there is one, if the job writes them."""
    names, paths = list(like), list(files)
    patterns = (pattern for kind, pattern in EACH_RANK.items() if kind in KINDS[name])
    return all(
        each_rank([path for path in paths if fnmatch.fnmatch(path.name, pattern)], ranks)
        for pattern in patterns
        if fnmatch.filter(names, pattern)
    )


def missing(found: Finished, files: list[Path], newest: Finished) -> list[str]:
    """Return the names of files that the newest checkpoint has and this one lacks. A framework removes old checkpoints
    file by file, and only once a newer one is finished; what ended it may be the last file to go."""
    if newest.root == found.root or not newest.root.is_dir() or newest.files or found.files:
        return []
    return sorted(
        {_general(path, newest) for path in files_of(newest.root)} - {_general(path, found) for path in files}
    )


def _general(path: Path, found: Finished) -> str:
    """Return a file's name that is the same in checkpoints of other steps."""
    return re.sub(rf"(?<=step|iter)([=_-]?)0*{found.step}(?!\d)", r"\1N", str(path.relative_to(found.root)))


def lacks(root: Path) -> str:
    """Return what a resume from a checkpoint would miss, empty for nothing known: Hugging Face's Trainer leaves
    optimizer and random states out with `save_only_model`."""
    if not (root / "trainer_state.json").exists():
        return ""
    names = {path.name for path in root.iterdir()}
    whole = any(name.startswith(("optimizer", "global_step", "zero", "scheduler")) for name in names)
    return "" if whole else "it has no optimizer: a resume begins with a new one (save_only_model)"


def newer_beside(root: Path) -> Finished | None:
    """Return the newest checkpoint beside this one with a name like its, if it is newer; it need not be finished."""
    like, step = re.sub(r"\d+", "*", glob.escape(root.name)), _last_number(root.name)
    found = max((Finished(_last_number(path.name), path) for path in root.parent.glob(like)), default=None)
    return found if found is not None and found.step > step else None


def _last_number(name: str) -> int:
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else -1
