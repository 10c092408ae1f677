"""Checkpoints of which several stand in one folder: those that a tracker file names, and files."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import math
import re
from functools import partial
from pathlib import Path
from typing import AbstractSet, Iterator, Sequence

from trainer.supervisor.formats import content
from trainer.supervisor.formats.layouts import (
    CLOCKS_S,
    DEEPSPEED_TRACKER,
    EACH_RANK,
    ENDED_BY_OTHERS,
    MEGATRON_TRACKER,
    NANOTRON_TRACKER,
    OF_STATE,
    UNFINISHED,
    Candidate,
    View,
    all_are_whole,
    digit_files,
    each_rank,
    holds_state,
    is_state,
)  # fmt: skip
from trainer.supervisor.formats.names import (
    EPOCH,
    STEP,
    first_rank_name,
    is_being_written,
    name_of_parts,
    names_rank,
    number_of,
    other_numbers,
    series,
)  # fmt: skip
from trainer.supervisor.formats.tree import listing

_WEIGHTS = ("model", "pytorch_model", "adapter_model")
_OF_EXPORT = re.compile(r"config.*\.json$|\.index\.json$|^tokenizer|^vocab|^special_tokens|^merges|^chat_template")
"""What belongs to weights that `save_pretrained` has written."""
_OF_MERGE = "_temp"
"""Ends the name of a folder in which each device has written its part of a TensorFlow checkpoint."""
_RANDOM = ("random_states", "rng_state")
_OF_NETWORKS = re.compile(
    r"(?<![A-Za-z])(?:u?net|net[gd]|generator|gen|discriminator|disc|vae|encoder|decoder|lora|adapter|policy|actor|critic|ema|"
    r"agent)(?![A-Za-z])", re.I
)  # fmt: skip
_MOST_RANKS = 64
"""Of a job whose ranks are not known: a larger number at the end of a name is more often a step within an epoch."""


def tracker_candidates(kinds: AbstractSet[str], view: View) -> Iterator[Candidate]:
    """A tracker file names the newest checkpoint after all of its files."""
    files = view.entries.files
    if "megatron" in kinds and MEGATRON_TRACKER in files:
        tracker_text = _text(view.path / MEGATRON_TRACKER)
        for name in fnmatch.filter(view.entries.folders, "iter_*"):
            now = tracker_text.isdecimal() and name == f"iter_{int(tracker_text):07d}"
            yield Candidate("megatron", view.path / name, partial(bool, now))
    for kind, tracker in (("deepspeed", DEEPSPEED_TRACKER), ("nanotron", NANOTRON_TRACKER)):
        tracker_text = _text(view.path / tracker) if kind in kinds and tracker in files else ""
        if tracker_text in view.entries.folders:
            yield from _tagged_candidates(kind, view, tracker_text)


def _tagged_candidates(kind: str, view: View, tag: str) -> Iterator[Candidate]:
    """DeepSpeed's tag may be a name that stays: its folder is then written again, and its files tell the step."""
    root = view.path / tag
    tag_view = View(root, listing(root), False, view.ranks, view.alone)
    states = tag_view.matching("*_states.pt")
    if kind == "deepspeed" and not (states or view.alone):
        return
    optimizer = tag_view.matching(EACH_RANK["deepspeed"])

    models = [path for path in states if path.name.endswith("model_states.pt")]

    def ready() -> bool:
        """All ranks meet between the files of the model and those of the optimizer: older ones are of the last save."""
        model_written_at = max((path.stat().st_mtime for path in models), default=0.0)
        return (
            (not optimizer or each_rank(optimizer, view.ranks))
            and all_are_whole(states)
            and all(path.stat().st_mtime >= model_written_at - CLOCKS_S for path in optimizer)
        )

    yield Candidate(kind, root, ready, settles=tag_view.number is None or kind == "nanotron", told_in=tuple(models[:1]))
    if kind == "deepspeed":
        for name in view.entries.folders - {tag}:
            if any(file_name.endswith("_states.pt") for file_name in listing(view.path / name).files):
                yield Candidate(kind, view.path / name, partial(bool, False))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()
    except OSError:
        return ""


def _index_lead_s(index: Path, data: Sequence[Path]) -> float:
    """Return by how much TensorFlow's index is younger than its data, in seconds: it is written after them. -inf where
    one of them is gone."""
    with contextlib.suppress(FileNotFoundError):
        return index.stat().st_mtime - max(path.stat().st_mtime for path in data)
    return -math.inf


def tensorflow_candidates(view: View) -> Iterator[Candidate]:
    """`ckpt-3.index`, and the data files that its name counts. The number is more often that of the save. An index that
    is not younger than its data may be that of the last save under this name, or of a node with another clock."""
    if not view.top and view.path.name.endswith(_OF_MERGE) and view.matching("part-?????-of-?????.*"):
        yield Candidate("tensorflow", view.path, partial(bool, False))
        return
    for index in view.matching("*.index"):
        stem = index.name[: -len(".index")]
        data = [path for path in view.matching(f"{glob.escape(stem)}.data-?????-of-?????")]
        if data:
            lead_s = _index_lead_s(index, data)
            is_whole = len(data) == int(data[0].name[-5:]) and lead_s >= -CLOCKS_S
            ready = partial(each_rank, [index] if is_whole else [], 1)
            meta = view.matching(f"{glob.escape(stem)}.meta")
            yield Candidate("tensorflow", view.path, ready, (*data, index, *meta), settles=lead_s <= 0, ordinal=True)


def files(kinds: AbstractSet[str], view: View) -> Iterator[Candidate]:
    """Files that are a checkpoint each, or together with others of the same number."""
    if "tensorflow" in kinds:
        yield from tensorflow_candidates(view)
    by_number: dict[tuple[int, ...], list[str]] = {}
    companions: dict[tuple[int, ...], list[str]] = {}
    digit_names = digit_files(view)
    single_names: list[str] = []
    marks = {name[: -len(end)] for end in (".done", ".DONE") for name in view.entries.files if name.endswith(end)}
    plain = "folder" in kinds and not any(map(number_of, marks))  # who marks files marks each of them
    for name in sorted(view.entries.files):
        path = view.path / name
        if is_being_written(name):
            if is_state(name):
                yield Candidate(UNFINISHED, path, partial(bool, False))
        elif name in marks and "marker" in kinds:
            if number_of(name) or "folder" in kinds:
                yield Candidate("marker", path, partial(all_are_whole, [path]), told_in=(path,))
        elif name.endswith(".ckpt") and "lightning" in kinds and not marks and not (plain and names_rank(name)):
            yield Candidate("lightning", path, partial(each_rank, [path], 1), told_in=(path,))
        elif plain and holds_state(path) and not ENDED_BY_OTHERS.search(name) and not name.startswith(_RANDOM):
            numbered_as = _numbered_as(name, view)
            number = number_of(numbered_as)
            if number is not None:
                is_named = number.kind in (STEP, EPOCH) or name in digit_names or _says_state(name, view)
                is_torn = not path.suffix and content.state(path) == content.PARTIAL  # `do_00000030` of HiFi-GAN
                names_step = content.names_number(path, number.value)  # such as `G_1000.pth`
                is_state_of_step = is_named or is_torn or names_step
                key = (number.value, *other_numbers(numbered_as, number.value))
                (by_number if is_state_of_step else companions).setdefault(key, []).append(name)
            elif OF_STATE.search(name):
                single_names.append(name)
    counts_saves = _counts_saves(view, by_number)
    for key, names in by_number.items():
        value = key[0]
        names += companions.get(key, [])  # such as `opt000030.pt` beside `model000030.pt`
        if len(names) > 1:  # what else belongs to them, such as `meta_000030.json`
            json_names = {name: _numbered_as(name, view) for name in view.entries.files if name.endswith(".json")}
            numbers = {name: number_of(numbered_as) for name, numbered_as in json_names.items()}
            names += [name for name, number in sorted(numbers.items()) if number and number.value == value]
        yield _of_files(view, tuple(view.path / name for name in names))._replace(ordinal=counts_saves)
    names_with_step = [name for name in single_names if content.step_in(view.path / name) is not None]
    for name in names_with_step:
        yield _of_files(view, (view.path / name,))
    remaining_names = [name for name in single_names if name not in names_with_step]
    for names in _differing_in_number(remaining_names):
        yield _of_files(view, tuple(view.path / name for name in names))
        remaining_names = [name for name in remaining_names if name not in names]
    if any(name.startswith(_WEIGHTS) for name in remaining_names):
        remaining_names += [name for name in sorted(view.entries.files) if _OF_EXPORT.search(name)]
    if remaining_names:
        yield _of_files(view, tuple(view.path / name for name in remaining_names))


def _differing_in_number(names: Sequence[str]) -> list[list[str]]:
    """Return the names of each checkpoint of those that differ from another one by numbers alone, such as a metric."""
    by_series: dict[str, dict[str, list[str]]] = {}
    for name in names:
        common_name = name_of_parts(name, names)
        by_series.setdefault(series(Path(common_name)), {}).setdefault(common_name, []).append(name)
    return [names for groups in by_series.values() if len(groups) > 1 for names in groups.values()]


def _counts_saves(view: View, by_number: dict[tuple[int, ...], list[str]]) -> bool:
    """Return whether the numbers of files are those of saves: one rank has written them one by one, from 0. Two names
    may take turns, and so do more that are not in order."""
    numbers = [key[0] for key in sorted(by_number)]
    if view.ranks != 1 or len(numbers) < 3 or numbers != list(range(len(numbers))):
        return False
    times = [max((view.path / name).stat().st_mtime for name in names) for _, names in sorted(by_number.items())]
    return all(earlier_time < later_time for earlier_time, later_time in zip(times, times[1:]))


def _says_state(name: str, view: View) -> bool:
    """Return whether a numbered file is called state of a training: by its name, its network's, or its folder's."""
    in_folder = not view.top and view.number is None and OF_STATE.search(view.path.name)
    return bool(OF_STATE.search(name) or _OF_NETWORKS.search(name) or in_folder)


def _numbered_as(name: str, view: View) -> str:
    return first_rank_name(name, view.entries.files, view.ranks or _MOST_RANKS)


def _of_files(view: View, paths: tuple[Path, ...]) -> Candidate:
    """Return the candidate of files of one number, or of none. One file that shows that it is whole needs no more."""
    if len(paths) > 1:
        return Candidate("file", view.path, partial(all_are_whole, paths), paths, settles=True, told_in=paths)
    unclear = content.state(paths[0]) == content.UNCLEAR
    return Candidate("file", paths[0], partial(all_are_whole, paths), settles=unclear, told_in=paths)
