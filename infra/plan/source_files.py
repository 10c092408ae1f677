"""The files of a workload's source that are packed: with submodules and nested clones, without what git ignores."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from infra.plan.facts import LeftOut, SourceFacts, Unsuitable
from infra.spec.workload.built_in import BuiltIn
from infra.spec.workload.links import MOUNTS
from infra.spec.workload.workload import Workload
from trainer.contract import DATA_MOUNT, LOCAL_CHECKPOINTS, SHARED_CHECKPOINTS
from trainer.contract.workload import WORKSPACE

MOST_BYTES = 256 * 2**20
"""Code is small; data belongs to the shared tier."""
_NO_LOSS = {".git", "__pycache__"}
_LEFT_OUT = _NO_LOSS | {".venv", "node_modules"}
"""Outside of git; nobody misses the former in the job."""
_IN_THE_POD = (WORKSPACE, DATA_MOUNT, MOUNTS, SHARED_CHECKPOINTS, LOCAL_CHECKPOINTS)
_LONGEST_PATH = 4095
"""Bytes of a path, by Linux's PATH_MAX."""
_WEIGH_S = 2.0
_NAMED = 3
REDIRECTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE")
"""Variables that a git hook sets: they would show another repository than the source's."""
_GITLINK = "160000"
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
    facts: SourceFacts
    """The facts for `check`."""


def look(workload: Workload | BuiltIn) -> SourceFacts | None:
    """Return what check has to know of a workload's source; None without such a folder."""
    if not isinstance(workload.source, str):
        return None
    if not (root := Path(workload.source).expanduser()).is_dir():
        return None
    packed_files = source_files(root, workload.rehearsal.secrets)
    requires = (workload.requirements or "").partition("[")[0]
    programs = [workload.script, *(name for _, name in workload.named_programs)]
    paths = {requires, *(name for name in programs if name and (root / name).is_file())} - {""}
    absent = sorted(name for name in paths if os.path.normpath(name) not in packed_files.names)
    return packed_files.facts.model_copy(update={"absent": tuple(absent)})


def source_files(root: Path, secrets: str | None) -> SourceFiles:
    """Return what is packed of an existing folder. The file `secrets` never is: it would be archived."""
    tree, repository, commit = _Tree(root), _repository_root(root), ""
    if repository is None:
        tree.walk_folder("")
    else:
        tree.walk_repository("")
        commit = "" if tree.problems else tree.commit()
    if secrets is not None:
        hidden = Path(secrets).expanduser().resolve()
        tree.names = {name for name in tree.names if (root / name).resolve() != hidden}
    for name in sorted(tree.names):
        tree.look_at_link(name)
    sizes = {name: (root / name).lstat().st_size for name in tree.names}
    if not sizes and not tree.problems:
        note = f": git ignores all of it, by the repository {repository}" if repository and tree.left_out else ""
        tree.problems["the source has no file", "mend workload.source, or .gitignore"].append(f"{root}{note}")
    if (size := sum(sizes.values())) > MOST_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_NAMED]
        parts = ", ".join(f"{name} {sizes[name] / 2**20:.0f} MiB" for name in largest)
        detail = f"{root}: {size / 2**20:.0f} MiB in {len(sizes)} files, at most {MOST_BYTES // 2**20} MiB; {parts}"
        tree.problems["the source is too large", "name what is no code in its .gitignore"].append(detail)
    facts = SourceFacts(
        left_out=_weights(root, tree.left_out), refused=_unsuitable(tree.problems), doubtful=_unsuitable(tree.doubts)
    )
    return SourceFiles(names=tuple(sorted(tree.names)), commit=commit, facts=facts)


class _Declined(Exception):
    """Git does not read a folder; the text is git's own."""


_Problems = defaultdict[tuple[str, str], list[str]]
"""(what is wrong, the cure) -> where it was seen."""


class _Tree:
    """A walk through a folder and the repositories in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names, self.left_out, self._repositories = set[str](), set[str](), set[str]()
        self.problems, self.doubts = _Problems(list), _Problems(list)

    def walk_folder(self, top: str) -> None:
        """Take all files of a folder that is in no repository."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            try:
                entries = list(os.scandir(self.root / folder))
            except OSError as error:
                self.problems[_UNREADABLE].append(f"{folder or self.root}: {error.strerror}")
                continue
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.name in _LEFT_OUT:
                    self.left_out |= {name} if entry.name not in _NO_LOSS else set()
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
        previous_names, folder = set(self.names), self.root / top
        try:
            tracked_rows = [row.partition("\t") for row in _git_files(folder, "--stage")]
            new = _git_files(folder, "--others", "--exclude-standard")
            ignored_names = _git_files(folder, "--others", "--ignored", "--exclude-standard", "--directory")
        except _Declined as declined:
            self._note_declined(declined, folder)
            return
        links = {os.path.join(top, name) for mode, _, name in tracked_rows if mode.startswith(_GITLINK)}
        clones = {os.path.join(top, name.rstrip("/")) for name in new if name.endswith("/")}  # git does not look into
        for name in (*(name for _, _, name in tracked_rows), *new):
            if os.path.join(top, name.rstrip("/")) not in links | clones:
                self._take(os.path.join(top, name))
        paths = (os.path.join(top, name.rstrip("/")) for name in ignored_names)
        self.left_out |= {path for path in paths if not _NO_LOSS & set(Path(path).parts)}
        absent = {link for link in links if not os.path.lexists(self.root / link / ".git")}
        if absent:
            self.problems[_NOT_INITIALISED] += absent
        # Also a clone whose files the outer repository tracks, and one that git does not take for a clone.
        folders = {str(parent) for name in self.names - previous_names for parent in Path(name).parents} - {".", top}
        inner = {candidate for candidate in folders if os.path.lexists(self.root / candidate / ".git")}
        for path in sorted((links - absent) | clones | inner):
            self.walk_repository(path)

    def commit(self) -> str:
        try:
            head = _git(self.root, "rev-parse", "--verify", "--quiet", "HEAD").strip()
            return head + ("-dirty" if _git(self.root, "status", "--porcelain", "--", ".") else "")
        except _Declined as declined:
            if str(declined):  # else nothing is committed yet
                self._note_declined(declined, self.root)
            return ""

    def _note_declined(self, refusal: _Declined, folder: Path) -> None:
        """Note git's own words, and its own cure where it has one."""
        lines = [line.strip() for line in str(refusal).splitlines() if line.strip()]
        cure = "install git, or mend the repository; without its .git all files are packed, ignored ones too"
        cure = next((line for line in lines if line.startswith("git config ")), cure)
        self.problems[f"git does not read the repository: {' '.join(lines)}", cure].append(str(folder))

    def _take(self, name: str) -> None:
        path = self.root / name
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):  # tracked, and removed from the working tree
            return
        if stat.S_ISDIR(mode) or any((self.root / parent).is_symlink() for parent in Path(name).parents[:-1]):
            return  # tracked as a file, or as below a folder
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            self.problems[_NO_FILE].append(name)
        elif stat.S_ISREG(mode) and not os.access(path, os.R_OK):
            self.problems[_UNREADABLE].append(name)
        elif len(os.fsencode(f"{WORKSPACE}/{name}")) > _LONGEST_PATH:
            self.problems[_TOO_LONG].append(name)
        else:
            self.names.add(name)

    def look_at_link(self, name: str) -> None:
        """Note a link that shows nothing in the pod."""
        if not (self.root / name).is_symlink():
            return
        target = os.readlink(self.root / name)
        link, target_path = f"{name} -> {target}", os.path.normpath(os.path.join(os.path.dirname(name), target))
        if target.startswith("/"):
            if not any(Path(target).is_relative_to(place) for place in _IN_THE_POD):
                findings = self.problems[_LEADS_OUT] if os.path.lexists(target) else self.doubts[_PERHAPS_THERE]
                findings.append(link)
        elif target_path.startswith("../") or target_path == "..":
            self.problems[_LEADS_OUT].append(link)
        elif target_path != "." and os.path.lexists(self.root / target_path) and not self._has_packed(target_path):
            self.doubts[_SHOWS_NOTHING].append(link)

    def _has_packed(self, path: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for name in self.names)


def _repository_root(root: Path) -> Path | None:
    """Return the folder, at or above `root`, that says it is a repository."""
    folder = root.resolve()
    return next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent / ".git")), None)


def _git_files(folder: Path, *options: str) -> list[str]:
    return _git(folder, "ls-files", "-z", *options).split("\0")[:-1]


def _git(folder: Path, *words: str) -> str:
    """Return what git prints. Raises `_Declined` also where git only warns: a folder that it cannot open."""
    environment = {name: value for name, value in os.environ.items() if name not in REDIRECTING}
    # Else git takes an outer repository for one that it cannot read, and with it what only the inner one ignores.
    ceiling = (_repository_root(folder) or folder).parent
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_CEILING_DIRECTORIES": str(ceiling)}
    try:
        process = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, env=environment)
    except OSError as error:
        raise _Declined(f"git cannot be started: {error.strerror}") from error
    warnings = process.stderr.decode(errors="replace").strip()
    if process.returncode or "warning: could not open" in warnings:
        raise _Declined(warnings)
    return os.fsdecode(process.stdout)


def _weights(root: Path, paths: Iterable[str]) -> tuple[LeftOut, ...]:
    """Return paths with their sizes, the largest first; what cannot be summed in a moment counts as far as it was."""
    time_limit, weights = time.monotonic() + _WEIGH_S, list[LeftOut]()
    for path in sorted(paths):
        size, is_complete, waiting = 0, True, [root / path]
        while waiting and (is_complete := time.monotonic() < time_limit):
            entry = waiting.pop()
            try:
                waiting += entry.iterdir() if entry.is_dir() and not entry.is_symlink() else ()
                size += entry.lstat().st_size if not entry.is_dir() else 0
            except OSError:
                pass
        weights.append(LeftOut(path=_printable(path), size_bytes=size, whole=is_complete))
    return tuple(sorted(weights, key=lambda weight: -weight.size_bytes))


def _unsuitable(problems: _Problems) -> tuple[Unsuitable, ...]:
    findings = []
    for (message, cure), places in problems.items():
        remainder = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
        detail = _printable(", ".join(sorted(places)[:_NAMED])) + remainder
        findings.append(Unsuitable(what=_printable(message), seen=detail, cure=cure))
    return tuple(findings)


def _printable(name: str) -> str:
    """Return a file's name as text that any screen and any JSON takes."""
    return os.fsencode(name).decode(errors="backslashreplace")
