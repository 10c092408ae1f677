"""Where checkpoints of each framework lie below a job's folder, and what ends one, by the frameworks' own sources.

torch 2.13 `distributed/checkpoint/filesystem.py`, `FileSystemWriter.finish`: `.metadata` is written under another name
and renamed, after every rank's file. transformers 5.23 `Trainer._save_checkpoint`: model, optimizer, random states of
each rank, then rank 0's `trainer_state.json`. accelerate 1.15 `save_accelerator_state`: `random_states_R.pkl` is each
rank's last file, before registered objects (`custom_checkpoint_I.pkl`). lightning 2.6 `_atomic_save`: a `.ckpt` is
written elsewhere and moved; FSDP's folder ends with `meta.pt`, DeepSpeed's with `latest`. deepspeed 0.19.8
`save_checkpoint`: rank 0 writes `latest` before the barrier, so other ranks may still write. Megatron-LM (d98e8a64)
`save_checkpoint`: the tracker is written in the finalizing function; megatron-core 0.16.1 `dist_checkpointing.save`:
`metadata.json` comes last. nanotron: `latest.txt` names the folder. litgpt `save_checkpoint`: `lit_model.pth`, then
small files of the same rank, so nothing marks the end. flax `_save_commit`: `checkpoint_tmp` is renamed; Tacotron 2 and
HiFi-GAN give their files no ending either. TensorFlow `MergeBundles`: the data files are renamed, then the index is
written. Orbax has `_METADATA` in each item's folder, an older one a file `checkpoint`. Where nothing marks the end, a
checkpoint counts when all of its files are whole and have not changed for some looks (`Finished.settles`).
"""

from __future__ import annotations

import fnmatch
import re
from functools import partial
from pathlib import Path
from typing import Callable, Iterable, NamedTuple, Sequence

from trainer.supervisor.formats import content
from trainer.supervisor.formats.names import (
    EPOCH,
    PLAIN,
    STEP,
    TIME,
    UNIT,
    Number,
    are_saves,
    are_steps,
    family,
    is_being_written,
    number_of,
)  # fmt: skip
from trainer.supervisor.formats.tree import Finished, FolderListing, listing

MEGATRON_TRACKER, DEEPSPEED_TRACKER, NANOTRON_TRACKER = "latest_checkpointed_iteration.txt", "latest", "latest.txt"
PATH_FILE = "last_checkpoint"
DONE, UNFINISHED = "DONE", "unfinished"
EACH_RANK = {"huggingface": "rng_state_*.pth", "deepspeed": "*optim_states.pt", "accelerate": "random_states_*.pkl"}
"""Format -> files of which each rank writes one."""
_INCOMPLETE = "checkpoint-is-incomplete.txt"
"""Stands in a checkpoint while Hugging Face's Trainer writes it because of a signal."""
_STATE = (
    ".pt", ".pth", ".ckpt", ".bin", ".pkl", ".safetensors", ".npz", ".tar", ".distcp", ".msgpack", ".h5", ".eqx",
    ".keras", ".hdf5", ".zip", ".state",
)  # fmt: skip
OF_STATE = re.compile(
    r"ckpt|checkpoint|chkpt|snapshot|state|model|weights?|params|optim|last|latest|final|best|save|resume", re.I
)
_BARE = re.compile(r"(?:^|/)(?:[A-Za-z]+[_-])+\d+$")
"""A name without an ending: `checkpoint_30` of flax and Tacotron 2, `do_00000030` of HiFi-GAN."""
_OF_STEPS = re.compile(
    r"(?:step|iter|iteration|update|epoch|ep|ckpt|checkpoint|chkpt|cp|save|snapshot|state|model|weights)s?[=_-]?$", re.I
)
_BESIDE = re.compile(
    r"tokenizer|vocab|dataset|cache|args|config|hparams|events\.|profile|wandb|predictions?|"
    r"(?<![A-Za-z])(?:eval|test|valid(?:ation)?)_?(?:outputs?|results?|preds?)", re.I
)  # fmt: skip
ENDED_BY_OTHERS = re.compile(r"_states\.pt$|^mp_rank_|^common\.pt$|^(?:optimizer|scheduler)\.bin$")
"""Files of DeepSpeed, Megatron and Accelerate: these formats end a checkpoint, and it has not ended."""
_OF_ORBAX = {"_CHECKPOINT_METADATA", "orbax.checkpoint", "_METADATA", "manifest.ocdbt"}
CLOCKS_S = 1.0
"""Clocks of two nodes that write into one folder may differ by so much."""


class Candidate(NamedTuple):
    """What a format knows as a checkpoint of a job, finished or not."""

    kind: str
    root: Path
    ready: Callable[[], bool]
    """Return whether its files are all there, as far as they show it."""
    files: tuple[Path, ...] = ()
    settles: bool = False
    told_in: tuple[Path, ...] = ()
    """Files whose content may name the step."""
    ordinal: bool = False
    """The number in its name counts saves."""
    lacks: bool = False
    """A part that the last ones have is missing."""

    @property
    def tops(self) -> tuple[Path, ...]:
        return self.files or (self.root,)

    @property
    def number(self) -> Number | None:
        return number_of(self.tops[0].name)

    @property
    def plain(self) -> bool:
        """Return whether no framework wrote it."""
        return self.kind in ("file", "folder")

    def checkpoint(self) -> Finished:
        return self._finished()._replace(plain=self.plain, lacks=self.lacks)

    def _finished(self) -> Finished:
        number = self.number
        if number is not None and number.kind == STEP:
            return Finished(number.value, self.root, self.files, settles=self.settles)
        steps = [content.step_in(path) for path in self.told_in]
        step = max((step for step in steps if step is not None), default=-1)
        if number is not None and number.kind == PLAIN and 0 <= step < number.value and not self._is_alone():
            # VITS and what follows it save `G_1000.pth` with the epoch under the name `iteration`.
            step = -1 if any(map(content.has_iteration_alone, self.told_in)) else step
        if step >= 0 or number is None:
            return Finished(step, self.root, self.files, settles=self.settles)
        if (
            number.kind in (EPOCH, TIME, UNIT)
            or self.ordinal
            or any(content.counts_epochs(path, number.value) for path in self.told_in)
        ):
            return Finished(-1, self.root, self.files, number.value, self.settles)
        return Finished(number.value, self.root, self.files, number.value, self.settles)

    def _is_alone(self) -> bool:
        """Return whether it is one file, the only one of its name: the number of `model_512.pt` is rather a size."""
        pattern, names = family(self.root.name), listing(self.root.parent).files
        return not self.files and sum(bool(pattern and pattern.match(name)) for name in names) < 2


class View(NamedTuple):
    """A folder of the job, its entries, and the ranks that write (0: not known)."""

    path: Path
    entries: FolderListing
    top: bool
    ranks: int
    alone: bool
    """One format alone is looked for, because the spec says so."""

    @property
    def number(self) -> Number | None:
        return None if self.top else number_of(self.path.name)

    def matching(self, pattern: str) -> list[Path]:
        return [self.path / name for name in sorted(fnmatch.filter(self.entries.files, pattern))]

    def state_files(self) -> list[Path]:
        """Return the files that hold state of a training, also those one folder below."""
        paths = [self.path / name for name in sorted(self.entries.files)]
        for name in sorted(self.entries.folders):
            paths += [self.path / name / file_name for file_name in sorted(listing(self.path / name).files)]
        return [path for path in paths if holds_state(path)]


def is_state(name: str) -> bool:
    has_its_form = name.endswith(_STATE) or _BARE.search(name)
    return bool(has_its_form) and not name.startswith(".") and not _BESIDE.search(name)


def holds_state(path: Path) -> bool:
    """Return whether a file is called one of state, and if its name has no ending, also begins like one."""
    return is_state(path.name) and (path.name.endswith(_STATE) or content.is_serialized(path))


def digit_files(view: View) -> frozenset[str]:
    """Return the files whose names are a step alone (`0050000.pt`); none if they count from 0, as ranks do."""
    names = {name for name in view.entries.files if is_state(name) and re.match(r"\d+\.\w+$", name)}
    count_from_0 = {int(name.partition(".")[0]) for name in names} == set(range(len(names)))
    return frozenset() if count_from_0 else frozenset(names)


def each_rank(paths: Sequence[Path], ranks: int) -> bool:
    return len(paths) >= ranks and all(content.state(path) == content.WHOLE for path in paths)


def all_are_whole(paths: Iterable[Path]) -> bool:
    return all(content.state(path) != content.PARTIAL for path in paths)


# One folder that is one checkpoint.


def _huggingface(view: View) -> Candidate | None:
    """`checkpoint-N`. While other ranks may still write their random states, `trainer_state.json` lies there already;
    without those a resume goes on with other numbers, and says so in one line of the log."""
    if view.top or not re.search(r"^checkpoint-\d+$", view.path.name):
        return None
    state, entries = view.path / "trainer_state.json", view.entries
    of_fsdp = any(name.startswith("pytorch_model_fsdp") for name in entries.folders | entries.files)
    of_trainer = view.alone or of_fsdp or entries.files & {state.name, "training_args.bin", _INCOMPLETE}
    if not of_trainer or view.matching("random_states_*.pkl"):
        return None

    def ready() -> bool:
        states = view.matching(EACH_RANK["huggingface"])
        random = not states or each_rank(states, view.ranks)
        return random and content.json_of(state) is not None and _INCOMPLETE not in entries.files

    return Candidate("huggingface", view.path, ready, told_in=(state,))


def _accelerate(view: View) -> Candidate | None:
    states = view.matching(EACH_RANK["accelerate"])
    if not states:
        return None
    objects = view.matching("custom_checkpoint_*.pkl")
    automatic = view.path.parent.name == "checkpoints" and re.match(r"checkpoint_\d+$", view.path.name)
    return Candidate(
        "accelerate", view.path, lambda: each_rank(states, view.ranks) and all_are_whole(objects + view.state_files()),
        tuple(view.state_files()) if view.top else (), settles=True, ordinal=bool(automatic),
        told_in=tuple(view.matching("train_state.json")),  # of kohya's scripts
    )  # fmt: skip


def _marker_folder(view: View) -> Candidate | None:
    """A marker of one's own: an empty file `DONE` in a folder whose name ends in the step, or in one that is written
    again and again. A folder of folders may have one for the whole run."""
    if view.top or DONE not in view.entries.files or (view.number is None and view.entries.folders):
        return None
    return Candidate("marker", view.path, lambda: True, settles=view.number is None)


def _lightning_folder(view: View) -> Candidate | None:
    if view.top or not view.path.name.endswith(".ckpt"):
        return None
    meta, of_deepspeed = view.path / "meta.pt", DEEPSPEED_TRACKER in view.entries.files
    return Candidate("lightning", view.path, lambda: of_deepspeed or each_rank([meta], 1), told_in=(meta,))


def _dcp(view: View) -> Candidate | None:
    """A folder with `.metadata`, or one whose folders have it: `step-N/model` and `step-N/optim` are one checkpoint."""
    parts = [view.path / name for name in sorted(view.entries.folders) if _is_dcp(listing(view.path / name))]
    holds_dcp = _is_dcp(view.entries)
    if not holds_dcp and (
        len(parts) < (2 if view.number is None else 1) or any(number_of(path.name) for path in parts)
    ):
        return None
    folders = ([view.path] if holds_dcp else []) + parts
    of_accelerate = any(path.name.startswith("pytorch_model_fsdp") for path in parts)  # its last file is not there yet
    files = (
        tuple(part_folder / name for part_folder in folders for name in sorted(listing(part_folder).files))
        if view.top
        else ()
    )

    def ready() -> bool:
        return not of_accelerate and all(_dcp_is_whole(folder) for folder in folders)

    return Candidate("dcp", view.path, ready, files, settles=bool(parts) or view.number is None)


def _is_dcp(entries: FolderListing) -> bool:
    return ".metadata" in entries.files or any(name.endswith(".distcp") for name in entries.files)


def _dcp_is_whole(folder: Path) -> bool:
    """Return whether `.metadata` is of the files beside it: into one folder, DCP writes the next files first."""
    names = listing(folder).files
    if ".metadata" not in names or ("common.pt" in names and "metadata.json" not in names):
        return False
    if not content.is_ended(folder / ".metadata"):
        return False
    end = (folder / ".metadata").stat().st_mtime
    return all((folder / name).stat().st_mtime <= end + CLOCKS_S for name in names if name.endswith(".distcp"))


def _orbax(view: View) -> Candidate | None:
    """Orbax writes into a folder of another name, and renames it; not on every file system, so it also has to rest."""
    item_names = [name for name in view.entries.folders if number_of(name) is None]  # `resnet50/10` is of a run
    items = [view.path, *(view.path / name for name in item_names if view.number is not None)]
    if view.top or not any(map(_is_of_orbax, items)):
        return None
    is_whole = not any(map(is_being_written, view.entries.folders))
    return Candidate("orbax", view.path, partial(bool, is_whole), settles=True)


def _is_of_orbax(folder: Path) -> bool:
    names = listing(folder).files
    return bool(names & _OF_ORBAX) or ("checkpoint" in names and content.is_serialized(folder / "checkpoint"))


def _plain_folder(view: View) -> Candidate | None:
    """Whole files of state in a folder with a step's name, or in one that is written again and again."""
    if view.top or _BESIDE.search(view.path.name):
        return None
    if any(ENDED_BY_OTHERS.search(name) for name in view.entries.files | view.entries.folders):
        return Candidate("folder", view.path, partial(bool, False))
    digits = re.search(r"\d+$", view.path.name)
    if view.number is not None and view.number.kind == PLAIN and digits:
        if digits.start() and not _OF_STEPS.search(view.path.name[: digits.start()]):
            return None
    elif view.number is None and not OF_STATE.search(view.path.name):
        return None
    files = view.state_files()
    if not files or any(_has_step(path, in_step_folder=view.number is not None) for path in files):
        return None
    if view.number is None and (digit_files(view) or len({content.step_in(path) for path in files} - {None}) > 1):
        return None  # each is a checkpoint, such as the newest and the best
    direct_files = [path for path in files if path.parent == view.path]
    if view.number is None and (are_steps(path.name for path in direct_files) or are_saves(direct_files, view.ranks)):
        return None
    if any(map(_is_step_folder, view.entries.folders)):
        return None
    if view.number is None and len(files) == 1 and len(view.entries.files) == 1:
        return None  # the file itself is the checkpoint
    index = view.matching("*.index.json")
    return Candidate(
        "folder", view.path, lambda: all_are_whole(files) and all(map(_has_indexed_files, index)), settles=True,
        told_in=tuple(view.matching("*.json")) + tuple(files),
    )  # fmt: skip


def _is_step_folder(name: str) -> bool:
    number = number_of(name)
    is_named = number is not None and number.kind in (STEP, EPOCH)
    return is_named or (number is not None and bool(_OF_STEPS.search(name.rstrip("0123456789"))))


def _has_step(path: Path, in_step_folder: bool) -> bool:
    """Return whether a file's name tells a step. `in_step_folder`: its folder's does, and plain numbers are those of
    ranks."""
    number = number_of(path.name)
    plain = re.search(r"(?:ckpt|checkpoint|snapshot|model)s?[=_-]?\d+\.\w+$", path.name, re.I)
    kind = PLAIN if number is None else number.kind
    return kind in (STEP, EPOCH) or (not in_step_folder and (kind == TIME or bool(plain)))


def _has_indexed_files(index: Path) -> bool:
    """Return whether all files are there that an index of safetensors or of `torch.save` names."""
    table = (content.json_of(index) or {}).get("weight_map")
    return isinstance(table, dict) and {str(name) for name in table.values()} <= listing(index.parent).files


FOLDERS: Sequence[tuple[str, Callable[[View], Candidate | None]]] = (
    ("marker", _marker_folder),
    ("accelerate", _accelerate),
    ("huggingface", _huggingface),
    ("lightning", _lightning_folder),
    ("dcp", _dcp),
    ("orbax", _orbax),
    ("folder", _plain_folder),
)
"""Format -> how it knows a folder, the surest first."""
