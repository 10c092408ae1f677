"""A workload's source in a git repository: its reference becomes a commit, whose files are kept in the cache."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

from infra.errors import UserError
from infra.folders import cache_root, keep
from infra.plan.source_files import REDIRECTING
from infra.spec.workload.built_in import BuiltIn
from infra.spec.workload.git_reference import GitSource
from infra.spec.workload.workload import Workload

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LOGIN = re.compile(r"//[^/@\s]+@")
_WITHIN_S = 900.0
_ALL = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")


def local(job: Workload | BuiltIn) -> Workload | BuiltIn:
    """Return a workload with its source as a folder of this machine, without asking a network; the built-in trainer,
    which has none, while this machine has not fetched the reference."""
    if not isinstance(job.source, GitSource):
        return job
    place = _place(job.source, known_commit(job.source) or "unknown")
    return job.model_copy(update={"source": str(place)}) if place.is_dir() else BuiltIn()


def known_commit(source: GitSource) -> str | None:
    """Return the commit that the reference had when this machine fetched it last; None if it never has."""
    try:
        return _note(source).read_text()
    except FileNotFoundError:
        return None


def fetch(source: GitSource) -> str:
    """Return the reference's commit, whose files are in the cache then. Raises `UserError` for a reference that is not
    there, and where git does not reach the repository."""
    commit = find_commit(source)
    checkout(source, commit)
    keep(_note(source), commit, lambda note: None)
    return commit


def find_commit(source: GitSource) -> str:
    """Return the commit of a reference, as the repository tells it. Raises `UserError` as `fetch`."""
    rows = _git(source, "ls-remote", "--", source.git, source.ref, f"{source.ref}^{{}}").splitlines()
    commits = {name: digest for digest, _, name in (row.partition("\t") for row in rows)}
    for name in (source.ref, f"refs/tags/{source.ref}", f"refs/heads/{source.ref}"):
        if name in commits:  # an annotated tag has an object of its own, and a line with ^{} for its commit
            return commits.get(f"{name}^{{}}", commits[name])
    if _COMMIT.fullmatch(source.ref):
        return source.ref
    cure = f"`git ls-remote {source.git}` shows what there is; a commit is written with all its digits"
    raise UserError("workload.source: the repository has no such tag or branch", seen=source, cure=cure)


def checkout(source: GitSource, commit: str) -> Path:
    """Return the folder with a commit's files and submodules, from the cache if it is there. Raises `UserError`."""
    place = _place(source, commit)
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".") as scratch:
            tree = Path(scratch) / "tree"
            _check_out(source, commit, tree)
            try:
                tree.rename(place)
            except OSError:  # another driver was faster, and packs from its folder already
                if not place.is_dir():
                    raise
    return place


def _check_out(source: GitSource, commit: str, tree: Path) -> None:
    _git(source, "init", "--quiet", str(tree))
    _git(source, "-C", str(tree), "remote", "add", "origin", source.git)
    try:
        _git(source, "-C", str(tree), "fetch", "--quiet", "--depth=1", "origin", commit)
    except UserError:  # not every server gives a commit by its name, or less than all history
        _git(source, "-C", str(tree), "fetch", "--quiet", "origin", *_ALL)
    _git(source, "-C", str(tree), "-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach", commit)
    _git(source, "-C", str(tree), "submodule", "--quiet", "update", "--init", "--recursive")
    head = _git(source, "-C", str(tree), "rev-parse", "HEAD").strip()
    if head != commit:
        raise UserError("workload.source: the reference is no commit", seen=source, cure=f"write ref: {head}")


def _place(source: GitSource, commit: str) -> Path:
    return cache_root() / "git" / f"{hashlib.sha256(source.git.encode()).hexdigest()[:16]}-{commit}"


def _note(source: GitSource) -> Path:
    name = hashlib.sha256(f"{source.git} {source.ref}".encode()).hexdigest()[:32]
    return cache_root() / "git" / f"{name}.commit"


def _git(source: GitSource, *words: str) -> str:
    """Return what git prints; it asks nothing at a terminal. Raises `UserError` in its own words, without a login."""
    environment = {name: value for name, value in os.environ.items() if name not in REDIRECTING}
    environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    environment.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    # Git takes a submodule from this machine only where it is told so: a repository elsewhere must not read ours.
    own_files = ["-c", "protocol.file.allow=always"] if source.git.startswith("file://") else []
    cure = "mend workload.source, or the login that this machine's git has for it; `git ls-remote` tries it"
    try:
        process = subprocess.run(
            ["git", *own_files, *words], capture_output=True, env=environment, timeout=_WITHIN_S, text=True,
            errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError("workload.source: git does not run", seen=f"{source}: {error}", cure=cure) from error
    if process.returncode:
        lines = " ".join(line.strip() for line in process.stderr.splitlines() if line.strip())
        detail = f"{source}: {_LOGIN.sub('//', lines)[-600:]}"
        raise UserError("workload.source: git does not get it", seen=detail, cure=cure)
    return process.stdout
