"""Finished checkpoints of well-known formats in a job's own folder.

Each format ends a checkpoint with one write that comes last. Only what that write has named counts as finished.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Callable, Iterable, Iterator, NamedTuple


class Finished(NamedTuple):
    """A checkpoint that its framework has finished."""

    step: int
    root: Path
    """File or folder that holds all of it."""
    files: tuple[Path, ...] = ()
    """If any: `root` is a folder that also holds other things, and only these files below it are the checkpoint."""


Find = Callable[[Path, int], Iterator[Finished]]
"""From a job's folder and the number of its ranks (0: not known) to what is finished in it."""
_INCOMPLETE = "checkpoint-is-incomplete.txt"
"""Stands in a checkpoint while Hugging Face's Trainer writes it because of a signal."""


def files_of(root: Path) -> list[Path]:
    """Return all files of a checkpoint, a file or a folder."""
    return [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())


def whole_ranks(name: str, files: Iterable[Path], ranks: int, like: Iterable[str]) -> bool:
    """Return whether the files that a format writes once per rank are here and whole, for so many ranks (0: not known).
    The format's last file may appear before them. `like`: names among which there is one, if the job writes them."""
    pattern = _EACH_RANK.get(name)
    if pattern is None or not fnmatch.filter(like, pattern):
        return True
    mine = [path for path in files if fnmatch.fnmatch(path.name, pattern)]
    return len(mine) >= ranks and all(map(zipfile.is_zipfile, mine))


def missing(found: Finished, files: list[Path], newest: Finished) -> list[str]:
    """Return the names of files that the newest checkpoint has and this one lacks. A framework removes old checkpoints
    file by file, and only once a newer one is finished; what ended it may be the last file to go."""
    if newest.root == found.root or not newest.root.is_dir():
        return []
    return sorted(
        {_general(path, newest) for path in files_of(newest.root)} - {_general(path, found) for path in files}
    )


def _general(path: Path, found: Finished) -> str:
    """Return a file's name that is the same in checkpoints of other steps."""
    return re.sub(rf"(?<=step|iter)([=_-]?)0*{found.step}(?!\d)", r"\1N", str(path.relative_to(found.root)))


def _dcp(folder: Path, ranks: int) -> Iterator[Finished]:
    """PyTorch's distributed checkpoints: `.metadata` appears by rename, after every rank's file."""
    for metadata in folder.glob("*/.metadata"):
        yield from _numbered(metadata.parent)


def _huggingface(folder: Path, ranks: int) -> Iterator[Finished]:
    """Hugging Face's Trainer: rank 0 writes `trainer_state.json` last, while other ranks may still write their random
    states. Without those a resume goes on with other numbers, and says so in one line of the log."""
    for found in _huggingface_named(folder):
        states = list(found.root.glob("rng_state_*.pth"))
        random = whole_ranks("huggingface", states, ranks, [path.name for path in states])
        if random and _is_json(found.root / "trainer_state.json") and not (found.root / _INCOMPLETE).exists():
            yield found


def _huggingface_named(folder: Path) -> Iterator[Finished]:
    for root in folder.glob("checkpoint-*"):
        yield from _numbered(root)


def _lightning(folder: Path, ranks: int) -> Iterator[Finished]:
    """Lightning: `.ckpt`, `step=N` in its name. A file is written elsewhere and moved: across file systems that is a
    copy, of which the end comes last. Of a folder, FSDP's strategies write `meta.pt` last, and DeepSpeed's `latest`."""
    for found in _lightning_named(folder):
        if found.root.is_dir():
            if zipfile.is_zipfile(found.root / "meta.pt") or (found.root / "latest").exists():
                yield found
        elif zipfile.is_zipfile(found.root):
            yield found


def _lightning_named(folder: Path) -> Iterator[Finished]:
    for path in folder.rglob("*.ckpt"):
        match = re.search(r"step=(\d+)", path.name)
        if match and not path.is_symlink():  # `last.ckpt` may link to one
            yield Finished(int(match.group(1)), path)


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _tracked(name: str, pattern: str) -> Find:
    """The format's tracker file names the newest checkpoint after all of its files; DeepSpeed's rank 0 does not wait
    for other ranks' optimizer states (0.19.8, `save_checkpoint`)."""

    def find(folder: Path, ranks: int) -> Iterator[Finished]:
        try:
            named = (folder / _TRACKERS[name][0]).read_text().strip()
        except OSError:
            return
        step = re.search(r"(\d+)$", named)
        if step and (root := folder / pattern.format(named=named, step=int(step.group(1)))).is_dir():
            files = files_of(root)
            if whole_ranks(name, files, ranks, [path.name for path in files]):
                yield Finished(int(step.group(1)), root)

    return find


def _marker(folder: Path, ranks: int) -> Iterator[Finished]:
    """A marker of one's own: an empty file `DONE` in a folder whose name ends in the step."""
    for done in folder.glob("*/DONE"):
        yield from _numbered(done.parent)


def forget_later(name: str, folder: Path, chosen: Finished | None) -> None:
    """Remove checkpoints after the chosen one (None: all), also half-written ones, and let a tracker file name it. Of
    formats that prescribe no name, half-written ones are known by the name of the chosen one. Lightning's `last.ckpt`
    tells no step, so it goes too: it would be taken up unchecked."""
    later = list(_NAMED[name](folder) if name in _NAMED else FORMATS[name](folder, 0)) if folder.is_dir() else []
    if chosen is not None:
        like = chosen.root.name.rstrip("0123456789")
        later += [one for path in chosen.root.parent.glob(glob.escape(like) + "*") for one in _numbered(path)]
    gone = [found.root for found in later if chosen is None or found.step > chosen.step]
    if name == "lightning":
        gone += [path for path in folder.rglob("last*.ckpt") if chosen is None or path != chosen.root]
    for root in gone:
        shutil.rmtree(root, ignore_errors=True) if root.is_dir() and not root.is_symlink() else _unlink(root)
    if name in _TRACKERS:
        tracker, text = _TRACKERS[name]
        if chosen is None:
            _unlink(folder / tracker)
        else:
            (folder / tracker).write_text(text.format(named=chosen.root.name, step=chosen.step))


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def newer_beside(root: Path) -> Finished | None:
    """Return the newest checkpoint beside this one with a name like its, if it is newer; it need not be finished."""
    like, step = re.sub(r"\d+", "*", glob.escape(root.name)), _last_number(root.name)
    found = max((Finished(_last_number(path.name), path) for path in root.parent.glob(like)), default=None)
    return found if found is not None and found.step > step else None


def _last_number(name: str) -> int:
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else -1


def _numbered(root: Path) -> Iterator[Finished]:
    match = re.search(r"(\d+)$", root.name)
    if match:
        yield Finished(int(match.group(1)), root)


_TRACKERS = {"megatron": ("latest_checkpointed_iteration.txt", "{step}"), "deepspeed": ("latest", "{named}")}
"""Format -> file that names the newest checkpoint, and what it says."""
_EACH_RANK = {"huggingface": "rng_state_*.pth", "deepspeed": "*optim_states.pt"}
"""Format -> files of which each rank writes one."""
_NAMED = {"huggingface": _huggingface_named, "lightning": _lightning_named}
"""Format -> what bears a checkpoint's name, finished or not."""
FORMATS: dict[str, Find] = {
    "dcp": _dcp,
    "huggingface": _huggingface,
    "lightning": _lightning,
    "megatron": _tracked("megatron", "iter_{step:07d}"),
    "deepspeed": _tracked("deepspeed", "{named}"),
    "marker": _marker,
    "client": lambda folder, ranks: iter(()),
}
