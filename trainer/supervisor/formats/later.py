"""A job's own folder after a step has been laid back: nothing later, half-written or unchecked is left to be taken up.

Only what the format recognises as a checkpoint of this job is removed, and what bears the name of the restored one with
a larger number: `tokenizer-32000` beside `checkpoint-30` stays.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Iterator, NamedTuple

from trainer.supervisor.formats.find import KINDS, candidates, nemo_marker
from trainer.supervisor.formats.layouts import (
    DEEPSPEED_TRACKER,
    MEGATRON_TRACKER,
    NANOTRON_TRACKER,
    Candidate,
    is_state,
)
from trainer.supervisor.formats.names import families, family, number_in_family, series
from trainer.supervisor.formats.tree import Finished, is_ours, listing
from trainer.supervisor.formats.versions import version_of, written_at
from trainer.supervisor.sealing.copying import copy

_TRACKERS = {
    "megatron": (MEGATRON_TRACKER, "{step}"),
    "deepspeed": (DEEPSPEED_TRACKER, "{named}"),
    "nanotron": (NANOTRON_TRACKER, "{named}"),
}
"""Format -> file that names the newest checkpoint, and what it says."""
TENSORFLOW_TRACKER = "checkpoint"
_OF_TENSORFLOW = re.compile(r'^model_checkpoint_path: "(.*)"')
_POINTER = re.compile(r"latest|last|newest|current|recent|resume|checkpoint", re.I)
_LONGEST_POINTER = 4096
_OF_WEIGHTS = ("file", "folder", "tensorflow", "orbax")
"""Formats in which weights are also handed out."""
_HALF = re.compile(r"(?:\.part|[._-](?:tmp|incomplete)(?:[._-]\w+)?)$")
"""Follows the name of a file that is being written: `ckpt_30.pt.tmp.1234`."""
_DONE = re.compile(r"\.(?:done|DONE)$")


class _Part(NamedTuple):
    """A part of the chosen checkpoint, such as a rank's file."""

    path: Path
    family: re.Pattern[str]
    number: int
    """The checkpoint's: `ckpt_30_1.pt` of rank 1 has 30."""

    def number_of(self, path: Path) -> int | None:
        """Return the number that tells a path from this part's; None if it has not its folder and name but for that."""
        return number_in_family(self.family, path.name) if path.parent == self.path.parent else None


def forget_later(name: str, folder: Path, checkpoint: Finished | None, sealed_at: float = 0.0) -> None:
    """Remove checkpoints of the format `name` after the chosen one (None: all of them), also half-written ones, and let
    trackers and links that named one of them name the chosen one. A file of no number that is not whole goes too, and
    Lightning's `last.ckpt` becomes a copy of the chosen one: it would be taken up unchecked. What has another name than
    the chosen one and is not newer than its seal (`sealed_at`, in seconds since 1970) stays: the job may have begun
    from it."""
    if not folder.is_dir():
        return
    all_candidates = list(candidates(folder, 0, KINDS[name])) if KINDS[name] else []
    later_candidates = [candidate for candidate in all_candidates if _is_later(candidate, checkpoint, sealed_at)]
    removed_paths = {path for candidate in later_candidates for path in candidate.tops}
    places = {folder, *(path.parent for path in removed_paths)}
    if checkpoint is None:
        parts = [part for candidate in later_candidates for part in _parts(candidate.tops)]
        removed_paths |= {path for part in parts for path in _of_its_name(part, 0)}
    else:
        places |= {path.parent for path in checkpoint.tops}
        parts = _parts(checkpoint.tops)
        removed_paths |= {path for part in parts for path in _of_its_name(part, part.number + 1)}
        folders_above = {folder_above for path in checkpoint.tops for folder_above in path.parents}
        removed_paths -= {checkpoint.root, *checkpoint.files, *folders_above}
    last_files = [
        path
        for candidate in all_candidates
        if candidate.kind == "lightning" and (path := candidate.root).name.startswith("last")
    ]
    removed_paths |= {path for path in last_files if checkpoint is None or path != checkpoint.root}
    for path in removed_paths:
        _remove(path)
        _remove(nemo_marker(path))
    for place in places:
        for left in listing(place).files | listing(place).folders:
            if is_ours(left):
                _remove(place / left)
        _renew_links(place, removed_paths, checkpoint)
        _renew_trackers(name, place, removed_paths, checkpoint)
        _renew_pointers(place, removed_paths, checkpoint)
        _renew_tensorflow_tracker(place, checkpoint)
    if checkpoint is not None:
        _make_findable(checkpoint, last_files)


def _is_whole(candidate: Candidate) -> bool:
    return candidate.ready() and not candidate.lacks


def _is_later(candidate: Candidate, checkpoint: Finished | None, sealed_at: float) -> bool:
    if checkpoint is None:  # what is whole and has no number may be what the job starts from
        return candidate.number is not None or candidate.kind not in _OF_WEIGHTS or not _is_whole(candidate)
    rival = candidate.checkpoint()
    if rival.face == checkpoint.face:
        return False
    for part in _parts(checkpoint.tops):
        if (number := part.number_of(rival.face)) is not None:
            is_torn = not _is_whole(candidate) and written_at(version_of(rival)) > sealed_at
            return number > part.number or is_torn
    is_newer = rival.step > checkpoint.step or (
        rival.step < 0 and candidate.number is None and not _is_whole(candidate)
    )
    return is_newer and written_at(version_of(rival)) > sealed_at


@lru_cache(maxsize=64)
def _parts(paths: tuple[Path, ...]) -> list[_Part]:
    """Return the parts of one checkpoint that have a number."""
    patterns = families(paths)
    numbers = {path: number_in_family(pattern, path.name) for path, pattern in patterns.items()}
    return [_Part(path, patterns[path], number) for path, number in numbers.items() if number is not None]


def _of_its_name(part: _Part, least_number: int) -> Iterator[Path]:
    """Yield what has a part's name with such a number or a larger one: nothing may have ended it yet. And what is
    half-written under a name with the part's own number or a larger one."""
    entries = listing(part.path.parent)
    for name in entries.folders if part.path.is_dir() else entries.files:
        number = number_in_family(part.family, _DONE.sub("", name))
        half_number = number_in_family(part.family, _HALF.sub("", name)) if _HALF.search(name) else None
        is_later = number is not None and number >= least_number
        if is_later or (half_number is not None and half_number >= min(least_number, part.number)):
            yield part.path.parent / name


def _renew_links(place: Path, removed_paths: set[Path], checkpoint: Finished | None) -> None:
    """Let the job's own links to what is gone (`latest -> step-40`) lead to the chosen one."""
    for name in listing(place).links:
        link = place / name
        target = Path(os.path.normpath(str(place / os.readlink(str(link)))))
        alike = None if checkpoint is None else _alike(target, checkpoint)
        if target in removed_paths or (alike is not None and not target.exists()):
            if checkpoint is None:
                _remove(link)
            elif (offer := alike.path if alike else _most_alike(target, checkpoint)) != link:
                _link(link, offer, absolute=os.path.isabs(os.readlink(str(link))))


def _alike(target: Path, checkpoint: Finished) -> _Part | None:
    """Return the part of a checkpoint that has this path, or at least its name, with another number; None if none
    has."""
    alike = [part for part in _parts(checkpoint.tops) if part.family.match(target.name)]
    return next((part for part in alike if part.path.parent == target.parent), alike[0] if alike else None)


def _most_alike(target: Path, checkpoint: Finished) -> Path:
    """Return the part of a checkpoint for a path that has no part's name with another number, since its epoch differs,
    too: of those of its series the one with the most of its numbers, such as the rank's."""
    numbers = re.findall(r"\d+", target.name)
    kin = [path for path in checkpoint.tops if series(Path(path.name)) == series(Path(target.name))]
    return max(kin or [checkpoint.face], key=lambda path: sum(map(str.__eq__, re.findall(r"\d+", path.name), numbers)))


def _link(link: Path, target: Path, absolute: bool = False) -> None:
    fresh = link.with_name(f".{link.name}.{secrets.token_hex(8)}")
    os.symlink(str(target) if absolute else os.path.relpath(str(target), str(link.parent)), str(fresh))
    os.replace(str(fresh), str(link))


def _renew_trackers(name: str, place: Path, removed_paths: set[Path], checkpoint: Finished | None) -> None:
    """Let a tracker file that names what is gone name the chosen one. A framework's own tracker is also written where
    none lies there: a node's disk may be new."""
    names = {path.name for path in removed_paths}
    for kind, (tracker, text) in _TRACKERS.items():
        path = place / tracker
        if kind not in KINDS[name] or path.is_symlink() or path.is_dir():
            continue
        old = path.read_text(errors="replace").strip() if path.exists() else ""
        if checkpoint is None:
            if kind == name or old in names or f"iter_{old:>07}" in names:
                _remove(path)
        elif place == checkpoint.root.parent and (kind == name or old in names or _has_tracker(kind, checkpoint.root)):
            _write(path, text.format(named=checkpoint.root.name, step=checkpoint.step))


def is_tensorflow_tracker(path: Path) -> bool:
    """Return whether a file is the one by which TensorFlow finds its newest checkpoint. Raises `OSError`."""
    return path.name == TENSORFLOW_TRACKER and _tensorflow_name(path) is not None


def _tensorflow_name(tracker: Path) -> str | None:
    with tracker.open("rb") as file:
        match = _OF_TENSORFLOW.match(file.read(_LONGEST_POINTER).decode(errors="replace"))
    return None if match is None else Path(match.group(1)).name


def _renew_tensorflow_tracker(place: Path, checkpoint: Finished | None) -> None:
    """Let TensorFlow's tracker name the chosen one, unless it names one of another series that is there."""
    tracker = place / TENSORFLOW_TRACKER
    index = next((path for path in checkpoint.files if path.suffix == ".index"), None) if checkpoint else None
    if tracker.is_file():
        name = _tensorflow_name(tracker)
        if name is None:
            return
        pattern = family(f"{name}.index")
        is_older = index is not None and pattern is not None and bool(pattern.match(index.name))
        if (place / f"{name}.index").exists() and not is_older:
            return
    if index is not None and index.parent == place:
        _write(tracker, f'model_checkpoint_path: "{index.stem}"\nall_model_checkpoint_paths: "{index.stem}"\n')
    elif tracker.is_file():
        _remove(tracker)


def _renew_pointers(place: Path, removed_paths: set[Path], checkpoint: Finished | None) -> None:
    """Let small files that hold the newest checkpoint's name, path or number, as `last_checkpoint` of Detectron2 and
    `latest.txt` of many scripts, name the chosen one where they named what is gone."""
    for name in sorted(listing(place).files):
        path = place / name
        if not _POINTER.search(name) or is_state(name) or path.stat().st_size > _LONGEST_POINTER:
            continue
        text = path.read_text(errors="replace").strip()
        gone_path = None if "\n" in text or not text else _gone_path(text, place, removed_paths, checkpoint)
        if gone_path is not None and checkpoint is None:
            _remove(path)
        elif gone_path is not None and checkpoint is not None:
            part = _alike(gone_path, checkpoint)
            offer = part.path if part else _most_alike(gone_path, checkpoint)
            number = part.number if part else number_in_family(family(offer.name), offer.name)
            if text.isdecimal() and number is not None:
                _write(path, f"{number:0{len(text) if text[0] == '0' else 1}d}")
            elif offer.parent == gone_path.parent:
                _write(path, str(Path(text).with_name(offer.name)))


def _gone_path(text: str, place: Path, removed_paths: set[Path], checkpoint: Finished | None) -> Path | None:
    """Return the checkpoint that a pointer's text names if it was removed, or never came and is a later one."""
    if text.isdecimal():
        beside = tuple(sorted(path for path in removed_paths if path.parent == place))
        numbers = {part.path: part.number for part in _parts(beside)}
        for own_part in () if checkpoint is None else _parts(checkpoint.tops):
            numbers.update({path: number for path in beside if (number := own_part.number_of(path)) is not None})
        return next((path for path, number in numbers.items() if number == int(text)), None)
    paths = (Path(os.path.normpath(str(place / text))), place / Path(text).name)
    for path in paths:
        part = None if checkpoint is None else _alike(path, checkpoint)
        number = None if part is None or os.path.lexists(str(path)) else part.number_of(path)
        if path in removed_paths or (part is not None and number is not None and number > part.number):
            return path
    return None


def _has_tracker(kind: str, root: Path) -> bool:
    """Return whether a checkpoint looks like one that its framework finds by the tracker of `kind`."""
    if kind == "megatron":
        return re.match(r"iter_\d{7}$", root.name) is not None
    return kind == "deepspeed" and any(name.endswith("_states.pt") for name in listing(root).files)


def _make_findable(checkpoint: Finished, last_files: list[Path]) -> None:
    """Put back what the job looks for beside a checkpoint: `last.ckpt`, or the marker of a file. Remove the mark by
    which it would take it for unfinished."""
    _remove(nemo_marker(checkpoint.root))
    for path in last_files:
        if path != checkpoint.root and path.parent == checkpoint.root.parent and path.name == "last.ckpt":
            _copy(path, checkpoint.root)
    entries = listing(checkpoint.root.parent)
    if checkpoint.root.is_file() and any(
        name.endswith(".done") and name != f"{checkpoint.root.name}.done" for name in entries.files
    ):
        (checkpoint.root.parent / f"{checkpoint.root.name}.done").touch()


def _copy(path: Path, source: Path) -> None:
    """Give a file of its own the bytes and permissions of a checkpoint: a job that opens a link for writing would write
    into that."""
    if source.is_file():
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        copy(source, fresh)
        shutil.copymode(source, fresh)
        os.replace(str(fresh), str(path))


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fresh.write_text(text)
    os.replace(str(fresh), str(path))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
