"""The formats by their names: what a spec may ask for, and what is finished of it in a folder."""

from __future__ import annotations

import fnmatch
import glob
import re
import time
from functools import partial
from pathlib import Path
from typing import AbstractSet, Callable, Iterable, Iterator, Sequence

from trainer.supervisor.formats import content
from trainer.supervisor.formats.files import files, tracker_candidates
from trainer.supervisor.formats.layouts import EACH_RANK, FOLDERS, OF_STATE, UNFINISHED, Candidate, View, each_rank
from trainer.supervisor.formats.names import PLAIN, is_being_written, number_of, same_step, series
from trainer.supervisor.formats.parts import join_parts
from trainer.supervisor.formats.tree import Finished, listing

Find = Callable[..., Iterator[Finished]]
"""From a job's folder, the number of its ranks (0: not known), and the newest step that is sealed already (-1: none;
up to that one all are yielded, without a look into them) to what is finished: `step` is -1 where nothing tells it."""
_ALONE = ("dcp", "huggingface", "accelerate", "lightning", "megatron", "deepspeed", "marker")
_DEEPEST = 8
_RESTED_S = 2.0
_OF_OUTPUTS = re.compile(
    r"(?<![A-Za-z])(?:samples?|generat(?:ed|ions?)|images?|imgs?|videos?|audio|pred(?:iction)?s?|eval(?:uation)?s?|"
    r"embeddings?|features?|activations?|attentions?|latents?|buffers?|replay|visuals?|plots?|figures?|metrics)"
    r"(?![A-Za-z])", re.I
)  # fmt: skip
KINDS: dict[str, frozenset[str]] = {name: frozenset({name}) for name in _ALONE}
"""Format of a spec -> the layouts that it recognises."""
KINDS["client"] = frozenset()
KINDS["auto"] = frozenset().union(*KINDS.values()) | {"nanotron", "orbax", "tensorflow", "folder"}


def candidates(folder: Path, ranks: int, kinds: AbstractSet[str]) -> Iterator[Candidate]:
    """Yield what the formats `kinds` know as checkpoints below a job's folder. A checkpoint's own folders are not
    searched, nor what hides behind a dot or a link. Raises `OSError`."""
    marked_candidates = map(_without_marked, _candidates(folder, ranks, kinds))
    all_candidates = list(join_parts(marked_candidates, folder))
    remaining = [candidate for candidate in all_candidates if not _is_output(candidate, folder)]
    return iter(remaining or all_candidates)


def nemo_marker(root: Path) -> Path:
    """Return the file that stands beside a checkpoint of NeMo while that is written or removed: at its next start NeMo
    removes what still has one (`NeMoModelCheckpoint.format_checkpoint_unfinished_marker_path` at 01d03c17)."""
    place = root.parent.parent if re.match(r"(?:mp|tp)_rank_", root.parent.name) else root.parent
    return place / (re.sub(r"(?:-EMA)?(?:\.ckpt)?$", "", root.name) + "-unfinished")


def _without_marked(candidate: Candidate) -> Candidate:
    marker = nemo_marker(candidate.root)
    is_marked = marker.name in listing(marker.parent).files
    return candidate._replace(ready=partial(bool, False)) if is_marked else candidate


def _is_output(candidate: Candidate, folder: Path) -> bool:
    """Return whether a numbered candidate is called what a run makes besides its checkpoints, and no state."""
    paths = [str(path.relative_to(folder)) for path in candidate.tops]
    is_plain_series = candidate.plain and candidate.number is not None
    return is_plain_series and all(_OF_OUTPUTS.search(path) and not OF_STATE.search(path) for path in paths)


def _candidates(folder: Path, ranks: int, kinds: AbstractSet[str], depth: int = 0) -> Iterator[Candidate]:
    if depth and is_being_written(folder.name):
        yield Candidate(UNFINISHED, folder, partial(bool, False))
        return
    try:
        view = View(folder, listing(folder), depth == 0, ranks, len(kinds) == 1)
    except PermissionError:  # the account says so
        return
    for kind, rule in FOLDERS:
        if kind in kinds and (candidate := rule(view)) is not None:
            yield candidate
            return
    tracked_candidates = list(tracker_candidates(kinds, view))
    yield from tracked_candidates
    yield from files(kinds, view)
    tracked_names = {candidate.root.name for candidate in tracked_candidates}
    for name in sorted(view.entries.folders - tracked_names):
        if depth < _DEEPEST and not name.startswith("."):
            yield from _candidates(folder / name, ranks, kinds, depth + 1)


def _finished_checkpoints(name: str, folder: Path, ranks: int, sealed_step: int = -1) -> Iterator[Finished]:
    """Raises `OSError`."""
    for candidate in candidates(folder, ranks, KINDS[name]) if KINDS[name] else ():
        checkpoint = candidate.checkpoint()
        # A plain number may be one of a few names that take turns: what is written there may be newer. What has the
        # sealed step's number may be another part of it.
        is_sealed = 0 <= checkpoint.step < sealed_step + (not candidate.plain)
        if (checkpoint.ordinal < 0 and is_sealed) or candidate.ready():
            yield checkpoint


FORMATS: dict[str, Find] = {name: partial(_finished_checkpoints, name) for name in KINDS}


def is_begun(name: str, folder: Path, root: Path, step: int) -> bool:
    """Return whether something of a step lies at `root`, finished or not. Raises `OSError`."""
    checkpoints = (candidate.checkpoint() for candidate in candidates(folder, 0, KINDS[name]))
    return any(checkpoint.root == root and checkpoint.step == step for checkpoint in checkpoints)


# Another node's files of a checkpoint.


def of_series(parts: Iterable[Path]) -> list[Path]:
    """Return the files that lie where `parts` would, and have their names but for the numbers. Raises `OSError`."""
    all_series = {series(path) for path in parts}
    folders = {path.parent for path in parts}
    paths = (folder / name for folder in sorted(folders) for name in sorted(listing(folder).files))
    return [path for path in paths if series(path) in all_series]


def of_step(paths: Iterable[Path], parts: Sequence[Path], step: int) -> list[Path]:
    """Return those of `paths` that have the number of `parts`, or where these have none, the step in their content."""
    patterns = same_step(parts)
    if not patterns:
        return [path for path in paths if content.step_in(path) == step]
    return [path for path in paths if any(pattern.match(path.name) for pattern in patterns)]


def have_ended(paths: Iterable[Path]) -> bool:
    """Return whether files are whole, or show not whether they are and have rested. Raises `OSError`."""
    states = [(path, content.state(path)) for path in paths]
    return all(
        state == content.WHOLE or (state == content.UNCLEAR and time.time() - path.stat().st_mtime >= _RESTED_S)
        for path, state in states
    )


# The files of a checkpoint.


def files_of(root: Path) -> list[Path]:
    """Return all files of a checkpoint, a file or a folder."""
    return [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())


def offered(root: Path, files: Sequence[Path]) -> Path:
    """Return what a job goes on from: a checkpoint's root, the one folder of Accelerate among its files, or of several
    files with one plain number the only one that is called a checkpoint: `model000030.pt` beside `opt000030.pt`."""
    folders = [path for path in files if fnmatch.filter(listing(path).files, EACH_RANK["accelerate"])]
    if len(folders) == 1:  # `lora-000005-state` beside `lora-000005.safetensors`
        return folders[0]
    named_files = [path for path in files if OF_STATE.search(path.name)]
    numbers = {number_of(path.name) for path in files}
    is_plain = all(number is not None and number.kind == PLAIN for number in numbers)
    return named_files[0] if len(named_files) == len(numbers) == 1 and len(files) > 1 and is_plain else root


def whole_ranks(name: str, files: Iterable[Path], ranks: int, like: Iterable[str]) -> bool:
    """Return whether the files that a format writes once per rank are here and whole, for so many ranks (0: not known).
    The format's last file may appear before them. `like`: names among which there is one, if the job writes them."""
    names, paths = list(like), [file for path in files for file in files_of(path)]
    patterns = (pattern for kind, pattern in EACH_RANK.items() if kind in KINDS[name])
    return all(
        each_rank([path for path in paths if fnmatch.fnmatch(path.name, pattern)], ranks)
        for pattern in patterns
        if fnmatch.filter(names, pattern)
    )


def missing(checkpoint: Finished, files: list[Path], newest: Finished) -> list[str]:
    """Return the names of files that the newest checkpoint has and this one lacks. A framework removes old checkpoints
    file by file, and only once a newer one is finished; what ended it may be the last file to go."""
    if newest.root == checkpoint.root or not newest.root.is_dir() or newest.files or checkpoint.files:
        return []
    return sorted(
        {_general(path, newest) for path in files_of(newest.root)} - {_general(path, checkpoint) for path in files}
    )


def _general(path: Path, checkpoint: Finished) -> str:
    """Return a file's name that is the same in checkpoints of other steps."""
    return re.sub(rf"(?<=step|iter)([=_-]?)0*{checkpoint.step}(?!\d)", r"\1N", str(path.relative_to(checkpoint.root)))


def lacks(root: Path) -> str:
    """Return what a resume from a checkpoint would miss, empty for nothing known: Hugging Face's Trainer leaves
    optimizer and random states out with `save_only_model`."""
    if not (root / "trainer_state.json").exists():
        return ""
    names = {path.name for path in root.iterdir()}
    has_optimizer = any(name.startswith(("optimizer", "global_step", "zero", "scheduler")) for name in names)
    return "" if has_optimizer else "it has no optimizer: a resume begins with a new one (save_only_model)"


def newer_beside(root: Path) -> Finished | None:
    """Return the newest checkpoint beside this one with a name like its, if it is newer; it need not be finished."""
    like, step = re.sub(r"\d+", "*", glob.escape(root.name)), _last_number(root.name)
    newest = max((Finished(_last_number(path.name), path) for path in root.parent.glob(like)), default=None)
    return newest if newest is not None and newest.step > step else None


def _last_number(name: str) -> int:
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else -1
