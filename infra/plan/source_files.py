"""The files of a workload's source that are packed: with submodules and nested clones, without what git ignores."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.plan.facts import LeftOut, Source, Unsuitable
from infra.spec.workload.links import MOUNTS
from infra.spec.workload.workload import Workload
from trainer.contract import DATA_MOUNT, LOCAL_CHECKPOINTS, SHARED_CHECKPOINTS
from trainer.contract.workload import WORKSPACE

MOST_BYTES = 256 * 2**20
"""Code is small; data belongs to the shared tier."""
_LEFT_OUT = {".git", "__pycache__", ".venv", "node_modules"}
_NO_LOSS = {".git", "__pycache__"}
"""Of those, nobody misses these in the job."""
_IN_THE_POD = (WORKSPACE, DATA_MOUNT, MOUNTS, SHARED_CHECKPOINTS, LOCAL_CHECKPOINTS)
_LONGEST_PATH = 4095
"""Bytes of a path, by Linux's PATH_MAX."""
_WEIGH_S = 2.0
_NAMED = 3
_REDIRECTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE")
"""Variables that a git hook sets: they would show another repository than the source's."""
_GITLINK = b"160000"
_NOT_INITIALISED = (
    "a git submodule is not initialised",
    "git submodule update --init --recursive; where .gitmodules does not name it: clone it there",
)
_NO_FILE = ("is neither a file nor a link, and no archive holds it", "remove it, or let git ignore it")
_UNREADABLE = ("cannot be read", "make it yours, or remove it")
_TOO_LONG = ("has a path that is too long for the pod", "give it a shorter name")
_LEADS_OUT = (
    "a link leads out of the source, so it shows nothing in the pod",
    "put what it shows into the source, or let git ignore the link; data come by workload.mounts",
)
_PERHAPS_THERE = ("a link leads to what only the image can have", "look whether the job's image has it")
_SHOWS_NOTHING = ("a link shows what is not packed", "let git track what it shows, or remove the link")


@dataclass(frozen=True)
class SourceFiles:
    names: tuple[str, ...]
    """Paths below the source, in order; bytes that are no UTF-8 are escaped as `os.fsdecode` does."""
    commit: str
    """The git commit, with `-dirty` if the working tree differs; empty outside of git."""
    size_bytes: int
    left_out: tuple[LeftOut, ...]
    """What git ignores, and environments outside of git; the largest first."""
    refused: tuple[Unsuitable, ...]
    """Why the source cannot be packed; empty: it can."""
    doubtful: tuple[Unsuitable, ...]


def source_files(root: Path, secrets: str | None) -> SourceFiles:
    """Return what is packed of an existing folder. The file `secrets` never is: it would be archived."""
    tree, commit = _Tree(root), ""
    if marked := _marked(root):
        tree.walk_repository("")
        try:
            commit = "" if tree.problems else _commit(root)
        except _Declined as declined:
            tree.note(_declined(declined), str(marked))
    else:
        tree.walk_folder("")
    names = tree.names
    if secrets is not None:
        hidden = Path(secrets).expanduser().resolve()
        names = {name for name in names if (root / name).resolve() != hidden}
    for name in sorted(tree.links & names):
        tree.look_at_link(name, names)
    sizes = {name: (root / name).lstat().st_size for name in names}
    _refuse_unfit(tree, root, sizes, marked)
    return SourceFiles(
        names=tuple(sorted(names)),
        commit=commit,
        size_bytes=sum(sizes.values()),
        left_out=_weighed(root, tree.left_out),
        refused=tuple(_grouped(tree.problems)),
        doubtful=tuple(_grouped(tree.doubts)),
    )


def look(workload: Workload | None) -> Source | None:
    """Return what check has to know; None without such a folder."""
    root = Path(workload.source).expanduser() if workload is not None and workload.source is not None else None
    if workload is None or root is None or not root.is_dir():
        return None
    found = source_files(root, workload.rehearsal.secrets)
    packed = {os.path.normpath(name) for name in found.names}
    named = [name for name in (workload.script, *(name for _, name in workload.named_programs)) if name]
    absent = (name for name in named if (root / name).is_file() and os.path.normpath(name) not in packed)
    return Source(
        files=len(found.names), size_bytes=found.size_bytes, left_out=found.left_out, refused=found.refused,
        doubtful=found.doubtful, not_packed=tuple(name for name in absent if not _under_link(root, name)),
        requirements=workload.requirements is None
        or os.path.normpath(str(workload.requirements).partition("[")[0]) in packed,
    )  # fmt: skip


class _Declined(Exception):
    """Git does not read a folder; the text is git's own."""


_Problem = tuple[str, str]
"""What is wrong, and the cure."""


class _Tree:
    """A walk through a folder and the repositories in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names, self.links, self.left_out = set[str](), set[str](), set[str]()
        self.problems, self.doubts = defaultdict[_Problem, list[str]](list), defaultdict[_Problem, list[str]](list)
        self._repositories = set[str]()

    def note(self, problem: _Problem, seen: str) -> None:
        self.problems[problem].append(seen)

    def walk_folder(self, top: str) -> None:
        """Take all files of a folder that is in no repository."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            try:
                entries = list(os.scandir(self.root / folder))
            except OSError as error:
                self.note(_UNREADABLE, f"{folder or self.root}: {error.strerror}")
                continue
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.name in _LEFT_OUT:
                    self.left_out |= set() if entry.name in _NO_LOSS else {name}
                elif not entry.is_dir(follow_symlinks=False):
                    self._take(name)
                elif os.path.lexists(os.path.join(entry.path, ".git")):
                    self.walk_repository(name)
                else:
                    waiting.append(name)

    def walk_repository(self, top: str) -> None:
        """Take a repository's tracked and new files, and those of the submodules and clones in it."""
        if top in self._repositories:
            return
        self._repositories.add(top)
        folder = self.root / top
        before, nested = set(self.names), list[str]()
        try:
            for mode, name in _tracked(folder):
                path = os.path.join(top, name)
                if mode != _GITLINK:
                    self._take(path)
                elif os.path.lexists(self.root / path / ".git"):
                    nested.append(path)
                else:
                    self.note(_NOT_INITIALISED, path)
            for name in _listed(folder, "--others", "--exclude-standard"):
                path = os.path.join(top, name.rstrip("/"))
                if name.endswith("/"):  # a clone in a clone, which git does not look into
                    nested.append(path)
                else:
                    self._take(path)
            self.left_out |= {
                os.path.join(top, name.rstrip("/"))
                for name in _listed(folder, "--others", "--ignored", "--exclude-standard", "--directory")
                if not _NO_LOSS & set(Path(name).parts)
            }
        except _Declined as declined:
            self.note(_declined(declined), str(folder))
            return
        # A clone whose files the outer repository tracks, or one that git does not take for a clone.
        folders = {str(parent) for name in self.names - before for parent in Path(name).parents}
        inner = (each for each in folders - {".", top} if os.path.lexists(self.root / each / ".git"))
        for path in (*nested, *inner):
            self.walk_repository(path)

    def _take(self, name: str) -> None:
        path = self.root / name
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):  # tracked, and removed from the working tree
            return
        if stat.S_ISDIR(mode) or _under_link(self.root, name):  # tracked as a file, or as below a folder
            return
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            self.note(_NO_FILE, name)
        elif stat.S_ISREG(mode) and not os.access(path, os.R_OK):
            self.note(_UNREADABLE, name)
        elif len(os.fsencode(f"{WORKSPACE}/{name}")) > _LONGEST_PATH:
            self.note(_TOO_LONG, name)
        else:
            self.names.add(name)
            self.links |= {name} if stat.S_ISLNK(mode) else set()

    def look_at_link(self, name: str, names: set[str]) -> None:
        target = os.readlink(self.root / name)
        shown, there = f"{name} -> {target}", os.path.normpath(os.path.join(os.path.dirname(name), target))
        if target.startswith("/"):
            if not any(Path(target).is_relative_to(place) for place in _IN_THE_POD):
                where = self.problems[_LEADS_OUT] if os.path.lexists(target) else self.doubts[_PERHAPS_THERE]
                where.append(shown)
        elif there.startswith("../") or there == "..":
            self.note(_LEADS_OUT, shown)
        elif there != "." and os.path.lexists(self.root / there) and not _holds(names, there):
            self.doubts[_SHOWS_NOTHING].append(shown)


def _refuse_unfit(tree: _Tree, root: Path, sizes: dict[str, int], marked: Path | None) -> None:
    """Note a source without a file, and one that is too large."""
    if not sizes and not tree.problems:
        ignored = f": git ignores all of it, by the repository {marked}" if marked and tree.left_out else ""
        tree.note(("the source has no file", "mend workload.source, or .gitignore"), f"{root}{ignored}")
    if (size := sum(sizes.values())) > MOST_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_NAMED]
        parts = ", ".join(f"{name} {sizes[name] / 2**20:.0f} MiB" for name in largest)
        seen = f"{root}: {size / 2**20:.0f} MiB in {len(sizes)} files, at most {MOST_BYTES // 2**20} MiB; {parts}"
        tree.note(("the source is too large", "name what is no code in its .gitignore"), seen)


def _holds(names: set[str], path: str) -> bool:
    return path in names or any(name.startswith(f"{path}/") for name in names)


def _marked(root: Path) -> Path | None:
    """Return the folder, at or above `root`, that says it is a repository."""
    here = root.resolve()
    return next((each for each in (here, *here.parents) if os.path.lexists(each / ".git")), None)


def _under_link(root: Path, name: str) -> bool:
    """Return whether a folder on the way to a file is a link: the file lies elsewhere."""
    return any((root / parent).is_symlink() for parent in Path(name).parents)


def _tracked(folder: Path) -> Iterator[tuple[bytes, str]]:
    """Yield (mode, name) of each entry of a repository's index at and below a folder."""
    for row in _git(folder, "ls-files", "-z", "--stage").split(b"\0")[:-1]:
        head, _, name = row.partition(b"\t")
        yield head.partition(b" ")[0], os.fsdecode(name)


def _listed(folder: Path, *options: str) -> list[str]:
    return [os.fsdecode(name) for name in _git(folder, "ls-files", "-z", *options).split(b"\0")[:-1]]


def _commit(root: Path) -> str:
    try:
        head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD").decode().strip()
    except _Declined as declined:
        if str(declined):
            raise
        return ""  # quiet: nothing is committed yet
    return head + ("-dirty" if _git(root, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *words: str) -> bytes:
    """Return what git prints. Raises `_Declined` also where git only warns: a folder that it cannot open."""
    environment = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    # Else git takes an outer repository for one that it cannot read, and with it what only the inner one ignores.
    ceiling = (_marked(folder) or folder).parent
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_CEILING_DIRECTORIES": str(ceiling)}
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, env=environment)
    except OSError as error:
        raise _Declined(f"git cannot be started: {error.strerror}") from error
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode or "warning: could not open" in said:
        raise _Declined(said)
    return done.stdout


def _declined(why: _Declined) -> _Problem:
    """Return git's own words, and its own cure where it has one."""
    lines = [line.strip() for line in str(why).splitlines() if line.strip()]
    own = next((line for line in lines if line.startswith("git config ")), None)
    cure = own or "install git, or mend the repository; without its .git all files are packed, ignored ones too"
    return f"git does not read the repository: {' '.join(lines)}", cure


def _weighed(root: Path, paths: set[str]) -> tuple[LeftOut, ...]:
    """Return paths with their sizes, the largest first; what cannot be summed in a moment counts as far as it was."""
    until = time.monotonic() + _WEIGH_S
    found = []
    for path in sorted(paths):
        size, whole = 0, True
        waiting = [root / path]
        while waiting and (whole := time.monotonic() < until):
            each = waiting.pop()
            try:
                if each.is_dir() and not each.is_symlink():
                    waiting += each.iterdir()
                else:
                    size += each.lstat().st_size
            except OSError:
                whole = False
        found.append(LeftOut(path=printable(path), size_bytes=size, whole=whole))
    return tuple(sorted(found, key=lambda one: -one.size_bytes))


def _grouped(problems: dict[_Problem, list[str]]) -> Iterator[Unsuitable]:
    for (what, cure), seen in problems.items():
        more = f" and {len(seen) - _NAMED} more" if len(seen) > _NAMED else ""
        yield Unsuitable(what=printable(what), seen=printable(", ".join(sorted(seen)[:_NAMED])) + more, cure=cure)


def printable(name: str) -> str:
    """Return a file's name as text that any screen and any JSON takes."""
    return os.fsencode(name).decode(errors="backslashreplace")
