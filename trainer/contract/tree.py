"""The job's own tree of a sealed checkpoint: which shard is which of its files, and the links and folders between them.

Standard library and Python 3.8 only: the supervisor carries this module into the job's image. Names are bytes; here and
in JSON they are text, as UTF-8 with surrogate escapes for what is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

FILE, FOLDER = "file", "folder"
_NAME = re.compile(r"tree-\d{4,}(?:-(\d+))?\.json")
_SHARD = re.compile(r"[^/.\0][^/\0]*")
_UNSAFE, _TAIL = re.compile(r"[^A-Za-z0-9._=+,@-]"), 80
_BELOW = "//"
"""In the older form, a shard's name is its file's quoted path; this stands between checkpoint and file."""


class TreeFile(NamedTuple):
    shard: str
    """Name of the shard in its attempt's folder."""
    mode: int
    """Permission bits of the job's file."""


class Tree(NamedTuple):
    """What a checkpoint is in the job's own folder. Keys are paths below `root`; a file's own is empty."""

    root: str
    """Path below the job's folder; `.`: the folder itself."""
    kind: str
    """`file` or `folder`."""
    files: Mapping[str, TreeFile]
    links: Mapping[str, str] = {}
    """Path -> target, which lies in the tree."""
    folders: Sequence[str] = ()
    part: bool = False
    """The folder also holds what is not of this checkpoint."""
    through: Mapping[str, str] = {}
    """Path of a file or folder -> target of the link that stood there and led elsewhere in the job's folder."""

    @property
    def name(self) -> str:
        """Return the name of its file or folder."""
        return "checkpoint" if self.root == "." else self.root.rpartition("/")[2]

    @property
    def names(self) -> dict[str, str]:
        """Return shard -> the path of its file below the job's folder, for people."""
        return {file.shard: printable("/".join(filter(None, (self.root, path)))) for path, file in self.files.items()}

    @property
    def tops(self) -> list[str]:
        """Return the files and folders that are the checkpoint, none of which lies in another one."""
        folders, paths = set(self.folders), sorted({*self.folders, *self.files})
        return [path for path in paths if not folders.intersection(map(str, PurePosixPath(path).parents))]

    def serialize(self) -> bytes:
        body: dict[str, Any] = {
            "format": 1,
            "root": self.root,
            "kind": self.kind,
            "files": {path: file._asdict() for path, file in sorted(self.files.items())},
            "links": dict(sorted(self.links.items())),
            "folders": sorted(self.folders),
        }
        rare = {"part": self.part, "through": dict(sorted(self.through.items()))}
        return json.dumps({**body, **{name: value for name, value in rare.items() if value}}, indent=1).encode() + b"\n"


def text_of(path: str) -> str:
    """Return a path of this machine as a tree holds it."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def path_of(text: str) -> str:
    """Return a tree's path as this machine's system calls take it."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def printable(text: str) -> str:
    """Return a name for people: what no terminal should get, and the backslash, stand as `\\xNN` for each byte."""

    def escape(letter: str) -> str:
        if letter.isprintable() and letter != "\\":
            return letter
        return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))

    return "".join(map(escape, text))


def tree_name(node: int, sealing: int) -> str:
    """Return the name of the shard with the tree of one node's files; `sealing` as in `shard_name`."""
    return f"tree-{node:04d}{f'-{sealing}' if sealing else ''}.json"


def sealing_of(shard: str) -> int | None:
    """Return which sealing of its attempt a tree is of; None for a shard that is none."""
    match = _NAME.fullmatch(shard.rpartition("/")[2])
    return int(match.group(1) or 0) if match else None


def is_tree(shard: str) -> bool:
    return sealing_of(shard) is not None


def shard_name(path: str, sealing: int = 0) -> str:
    """Return the name of a file's shard. `path`: of the file below the job's folder, as a tree holds it; `sealing`:
    how often this attempt has sealed the step before, since an earlier shard stays until the new one is committed."""
    raw = path.encode("utf-8", "surrogateescape") + (b"\0%d" % sealing if sealing else b"")
    tail = _UNSAFE.sub("_", path.rpartition("/")[2])[-_TAIL:]
    return f"{hashlib.sha256(raw).hexdigest()[:16]}-{tail}"


def parse_tree(content: bytes) -> Tree:
    """Return a tree. Raises `ValueError` for one that no sealing wrote, and for a path or link that leads out of it."""
    try:
        body = json.loads(content)
        files = {str(path): TreeFile(str(file["shard"]), int(file["mode"])) for path, file in body["files"].items()}
        links = {str(path): str(target) for path, target in body["links"].items()}
        folders = [str(path) for path in body["folders"]]
        detours = {str(path): str(target) for path, target in body.get("through", {}).items()}
        tree = Tree(str(body["root"]), str(body["kind"]), files, links, folders, body.get("part") is True, detours)
        if body["format"] != 1:
            raise ValueError("its format is {}".format(body["format"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no tree of a checkpoint: {type(error).__name__} {error}") from error
    _check(tree)
    return tree


def merge(trees: Sequence[Tree]) -> Tree:
    """Return the tree of all nodes' files. Raises `ValueError` for trees of different checkpoints."""
    reference = trees[0]
    files: dict[str, TreeFile] = {}
    links: dict[str, str] = {}
    for tree in trees:
        if (tree.root, tree.kind) != (reference.root, reference.kind):
            raise ValueError(f"two nodes have different checkpoints: {reference.root!r} and {tree.root!r}")
        for path, file in tree.files.items():
            if files.setdefault(path, file).shard != file.shard:
                raise ValueError(f"two nodes have different shards for {path!r}")
        for path, target in tree.links.items():
            if links.setdefault(path, target) != target:
                raise ValueError(f"two nodes have different links at {path!r}")
    folders = sorted({path for tree in trees for path in tree.folders})
    detours = {path: target for tree in trees for path, target in tree.through.items()}
    union = Tree(reference.root, reference.kind, files, links, folders, any(tree.part for tree in trees), detours)
    _check(union)
    return union


def tree_of(shards: Iterable[str], read: Callable[[str], bytes]) -> Tree | None:
    """Return the job's tree of a step; None where the built-in trainer wrote it, whose shards are its files.

    `shards`: their names below the step's folder; `read`: content of one. Raises `ValueError` for trees that do not fit
    the shards, and what `read` raises.
    """
    names = list(shards)
    if trees := [parse_tree(read(name)) for name in names if is_tree(name)]:
        tree = merge(trees)
        shard_names = {name.rpartition("/")[2] for name in names}
        if absent_shards := [file.shard for file in tree.files.values() if file.shard not in shard_names]:
            raise ValueError(f"its tree names {absent_shards[0]}, which is no shard of it")
        return tree
    quoted_paths = [name.rpartition("/")[2] for name in names]
    paths = [unquote(name, errors="surrogateescape").partition(_BELOW) for name in quoted_paths]
    if not paths or not (all(separator for _, separator, _ in paths) or len(paths) == 1):
        return None
    files = {path: TreeFile(name, 0o644) for name, (_, _, path) in zip(quoted_paths, paths)}
    tree = Tree(paths[0][0], FOLDER if paths[0][1] else FILE, files)
    if any(root != tree.root for root, _, _ in paths):
        raise ValueError("its files are of different checkpoints")
    _check(tree)
    return tree


def own_name(shards: Iterable[str], read: Callable[[str], bytes]) -> str:
    """Return a checkpoint's path below the job's own folder, for people; empty where it is not known. Arguments as of
    `tree_of`; a node's disk may have its own tree only."""
    names = list(shards)
    for name in filter(is_tree, names):
        try:
            return printable(parse_tree(read(name)).root)
        except (OSError, ValueError):
            continue
    try:
        tree = None if any(map(is_tree, names)) else tree_of(names, read)
    except ValueError:
        return ""
    return "" if tree is None else printable(tree.root)


def lay_out(
    tree: Tree, target: Path, place: Callable[[Sequence[tuple[TreeFile, Path]]], object], modes: bool = True
) -> None:
    """Put a tree at `target`; what lies there already and is not of the tree stays. `place`: put files at their paths,
    in the place of what an earlier try has left there. `modes`: give them the permissions of the job's."""
    for folder in sorted({*tree.folders, *(path.rpartition("/")[0] for path in (*tree.files, *tree.links))} - {""}):
        (target / path_of(folder)).mkdir(parents=True, exist_ok=True)
    if tree.kind == FOLDER:
        target.mkdir(parents=True, exist_ok=True)
    files = [(file, target / path_of(path) if path else target) for path, file in tree.files.items()]
    place(files)
    for file, destination in files if modes else ():
        destination.chmod(file.mode & 0o777)
    for path, link_target in tree.links.items():  # after the files, so that none is written through a link
        destination = target / path_of(path)
        with contextlib.suppress(FileNotFoundError):
            destination.unlink()
        destination.symlink_to(path_of(link_target))


def _check(tree: Tree) -> None:
    """Raise `ValueError` for a tree that could be laid out beyond its root, or not at all."""
    if tree.root != ".":
        _check_path(tree.root)
    if tree.kind == FILE:
        if list(tree.files) != [""] or tree.links or tree.folders:
            raise ValueError("a checkpoint that is a file has one, and nothing else")
    elif tree.kind == FOLDER:
        for path in (*tree.files, *tree.links, *tree.folders):
            _check_path(path)
    else:
        raise ValueError(f"no kind of a checkpoint: {tree.kind!r}")
    leaves = [*tree.files, *tree.links]
    if len({*leaves, *tree.folders}) != len(leaves) + len(set(tree.folders)):
        raise ValueError("one path is two things")
    leaf_paths = set(leaves)
    for path in (*leaves, *tree.folders):
        parts = path.split("/")
        if any("/".join(parts[:depth]) in leaf_paths for depth in range(1, len(parts))):
            raise ValueError(f"a path leads through a file or a link: {path!r}")
    for file in tree.files.values():
        if _SHARD.fullmatch(file.shard) is None or not 0 <= file.mode <= 0o7777:
            raise ValueError(f"no shard, or no mode: {file!r}")
    for path, target in tree.links.items():
        if link_inside(path, target) is None:
            raise ValueError(f"a link leads out of the checkpoint: {path!r} to {target!r}")


def link_inside(path: str, target: str) -> str | None:
    """Return the path below the root that a link leads to, empty for the root itself; None if it may lead out.

    Steps up stand only at a target's beginning. So it stays inside whatever other links it leads through.
    """
    parts, folders = target.split("/"), path.split("/")[:-1]
    if target in (".", "./"):
        parts = []
    while parts and parts[0] == "..":
        if not folders:
            return None
        parts, folders = parts[1:], folders[:-1]
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return None
    return "/".join((*folders, *parts))


def _check_path(path: str) -> None:
    if not path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"a path that leads out of its folder: {path!r}")
