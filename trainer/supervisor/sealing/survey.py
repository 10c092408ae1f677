"""What a checkpoint is at one moment: its files, links and folders, as they are to be sealed; their copies, which only
the supervisor writes; and links to elsewhere in the job's folder, as they are laid back."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from functools import partial
from pathlib import Path
from typing import Iterable, Mapping, NamedTuple, Sequence, Tuple, TypeVar

from trainer.contract.tree import FILE, FOLDER, Tree, link_inside, path_of, printable, text_of
from trainer.supervisor.sealing.copying import SizeAndDigest, copy, digest_of, side_by_side

Mark = Tuple[int, int, int, int]
"""Device, inode, size and time of the last change, in ns: it differs once a file was written again."""
DIGESTS = ".digests.json"
"""In a checkpoint whose writer has digested what it wrote (`bivouac_dcp`): sizes and SHA-256 of its files."""
_METADATA = ".metadata"
_HELD = ".links-"
"""Links to the job's files have names that begin so while they are copied."""
_Value = TypeVar("_Value")


class Entry(NamedTuple):
    source: str
    """Path of the file, whatever links lead to it."""
    mark: Mark
    mode: int
    """Permission bits."""


class Survey(NamedTuple):
    root: str
    """Path below the job's folder, as a tree holds it."""
    kind: str
    files: dict[str, Entry]
    links: dict[str, str]
    folders: list[str]
    part: bool
    through: dict[str, str]
    """Path of what was taken through a link -> the link's target."""

    @property
    def marks(self) -> dict[str, Mark]:
        return {path: entry.mark for path, entry in self.files.items()}

    def difference(self, newer: Survey) -> str:
        """Return what came, or changed, between two surveys of a checkpoint; empty where nothing did. What has gone is
        no difference: a framework may remove its old checkpoint while it is copied."""
        for path, entry in newer.files.items():
            if path not in self.files:
                return f"{printable(path or self.root)} came while it was copied"
            if entry.mark != self.files[path].mark:
                return f"{printable(path or self.root)} was written while it was copied"
        links = set(newer.links.items()) - set(self.links.items())
        new = sorted({path for path, _ in links} | (set(newer.folders) - set(self.folders)))
        return f"{printable(new[0])} came while it was copied" if new else ""


def survey(root: Path, folder: Path, files: Sequence[Path] = ()) -> Survey:
    """Return what a checkpoint is. `files`: its own files and folders, where `root` also holds other things; none: all
    that is there.

    Links that stay in the checkpoint are links, also once it is laid back. Through one to elsewhere in the job's folder
    its content is taken. Raises `ValueError` for one that leads out of that folder, to nothing or in a circle, and for
    what is neither file, folder nor link; `OSError` for what is gone.
    """
    return _Look(root, folder, files).survey


def mark_of(status: os.stat_result) -> Mark:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Look:
    def __init__(self, root: Path, folder: Path, files: Sequence[Path]) -> None:
        self._folder, self._root = os.path.realpath(str(folder)), os.path.realpath(str(root))
        if not is_within(self._root, self._folder):
            raise ValueError(f"it lies outside of the job's folder: {printable(str(root))}")
        status = os.stat(self._root)
        kind = FOLDER if stat.S_ISDIR(status.st_mode) else FILE
        self.survey = Survey(text_of(os.path.relpath(self._root, self._folder)), kind, {}, {}, [], bool(files), {})
        self._names = {text_of(os.path.relpath(str(path), str(root))) for path in files}
        if kind == FILE:
            self._file("", self._root, status)
        elif files:
            for name in sorted(self._names):
                self._entry(name, os.path.join(self._root, path_of(name)), ())
        else:
            self._walk(self._root, "", (self._root,))

    def _walk(self, folder: str, prefix: str, trail: tuple[str, ...]) -> None:
        """Look at a folder. `trail`: the folders on the way to it, without links."""
        for name in sorted(os.listdir(folder)):
            self._entry(f"{prefix}/{text_of(name)}" if prefix else text_of(name), os.path.join(folder, name), trail)

    def _entry(self, path: str, real_path: str, trail: tuple[str, ...]) -> None:
        status = os.lstat(real_path)
        if stat.S_ISLNK(status.st_mode):
            self._link(path, real_path, trail)
        elif stat.S_ISDIR(status.st_mode):
            self.survey.folders.append(path)
            self._walk(real_path, path, (*trail, real_path))
        else:
            self._file(path, real_path, status)

    def _file(self, path: str, source: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path or self.survey.root!r} is neither a file nor a folder nor a link")
        self.survey.files[path] = Entry(source, mark_of(status), status.st_mode & 0o777)

    def _link(self, path: str, link_path: str, trail: tuple[str, ...]) -> None:
        target = os.readlink(link_path)
        link_text = f"the link {path!r} leads to {text_of(target)!r},"
        try:
            status = os.stat(link_path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) or not os.path.islink(link_path):
                raise
            raise ValueError(f"{link_text} where nothing is") from error
        real = os.path.realpath(link_path)
        if not is_within(real, self._folder):
            raise ValueError(f"{link_text} which is outside of the job's folder")
        if (kept_target := self._inner_target(path, link_path, target, real)) is not None:
            self.survey.links[path] = kept_target
            return
        self.survey.through[path] = text_of(target)
        if not stat.S_ISDIR(status.st_mode):
            self._file(path, real, status)
        elif real in trail or is_within(self._root, real):
            raise ValueError(f"{link_text} a folder that holds it")
        else:
            self.survey.folders.append(path)
            self._walk(real, path, (*trail, real))

    def _inner_target(self, path: str, link_path: str, target: str, real: str) -> str | None:
        """Return the target of a link that stays a link: as it is, or without what leads through other folders; None
        for one to elsewhere."""
        from_root = text_of(os.path.relpath(real, self._root))
        shortest = text_of(os.path.relpath(path_of(from_root), os.path.dirname(path_of(path)) or "."))
        for choice in (text_of(target), shortest):
            place = link_inside(path, choice)
            if place is None or (self._names and not any(is_within(place, name) for name in self._names)):
                continue
            inner_path = os.path.join(self._root, path_of(place))
            if os.path.lexists(inner_path) and os.path.samefile(inner_path, link_path):
                return choice
        return None


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def told_version(root: Path) -> list[int]:
    """Return number, bytes and newest time of change of a checkpoint's files, as the client notes them."""
    paths = [os.path.join(top, name) for top, _, names in os.walk(str(root)) for name in names]
    rows = []
    for path in paths or [str(root)]:
        with contextlib.suppress(FileNotFoundError):
            rows += [os.stat(path)] if os.path.isfile(path) else []
    return [len(rows), sum(row.st_size for row in rows), max([row.st_mtime_ns for row in rows], default=0)]


def take(checkpoint: Survey, attempt: Path, names: Mapping[str, str]) -> dict[str, SizeAndDigest]:
    """Copy a checkpoint's files into a folder under these names, of which none is there; return sizes and digests.

    All are held by links first, so that what the job removes meanwhile is copied all the same. Raises `ValueError` for
    a file that was written since the survey, or is not what its writer has digested; the caller removes what was made.
    """
    links = {path: _link_beside(Path(entry.source), attempt / names[path]) for path, entry in checkpoint.files.items()}
    writer_digests = _digests_of_writer(checkpoint)

    def copy_file(path: str) -> SizeAndDigest:
        entry, link, target = checkpoint.files[path], links[path], attempt / names[path]
        digest = copy(link or Path(entry.source), target, partial(_insist_unchanged, path, entry))
        if digest != writer_digests.get(path, digest):
            raise ValueError(
                f"{printable(path)} is not what its writer has digested: {digest[0]} bytes, SHA-256 {digest[1]}"
            )
        if link is not None:
            link.unlink()
        return digest

    return dict(zip(checkpoint.files, side_by_side(copy_file, checkpoint.files)))


def _link_beside(source: Path, target: Path) -> Path | None:
    """Link a file beside the path of its copy; return the link, None where there can be none."""
    link = target.with_name(_HELD + target.name)
    try:
        os.link(str(source), str(link))
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or a file of somebody else
        return None
    return link


def _insist_unchanged(path: str, entry: Entry, status: os.stat_result) -> None:
    if mark_of(status) != entry.mark:
        raise ValueError(f"{printable(path or text_of(Path(entry.source).name))} was written while it was sealed")


def _digests_of_writer(checkpoint: Survey) -> dict[str, SizeAndDigest]:
    """Return size and SHA-256 of each file as its writer has noted them while it wrote; empty unless the note names
    these files, in these sizes, and `.metadata` as it stands: that one is another with each save. Raises `OSError`
    where it cannot be read."""
    try:
        files = json.loads(Path(checkpoint.files[DIGESTS].source).read_bytes())["files"]
        writer_digests = {str(name): (int(size), str(digest)) for name, (size, digest) in files.items()}
        sizes = {path: entry.mark[2] for path, entry in checkpoint.files.items() if path != DIGESTS}
        noted_sizes = {path: size for path, (size, _) in writer_digests.items()}
        if sizes == noted_sizes and digest_of(Path(checkpoint.files[_METADATA].source)) == writer_digests[_METADATA]:
            return writer_digests
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        pass  # the note is of another save, or none
    return {}


def with_links(tree: Tree, root: Path, digests: Mapping[str, SizeAndDigest]) -> Tree:
    """Return the tree as it is to be laid back at `root`: what was taken through a link is that link, where its target
    is as it was, and files else. `digests`: shard -> size and SHA-256."""
    for path, target in sorted(tree.through.items()):  # a folder before what lies in it
        if (path in tree.files or path in tree.folders) and _leads_to_it(tree, path, target, root, digests):
            links = {**_except_below(path, tree.links), path: target}
            folders = [folder for folder in tree.folders if not is_within(folder, path)]
            tree = tree._replace(files=_except_below(path, tree.files), links=links, folders=folders)
    return tree


def _leads_to_it(tree: Tree, path: str, target: str, root: Path, digests: Mapping[str, SizeAndDigest]) -> bool:
    """Return whether a link at `path` would lead to what was sealed there, and stays when `root` is replaced."""
    folder = root if tree.root == "." else root.parents[tree.root.count("/")]
    base = os.path.join(os.path.realpath(str(root.parent)), root.name)
    link = os.path.join(base, path_of(path))
    target_path = os.path.join(os.path.dirname(link), path_of(target))
    try:
        real = os.path.realpath(target_path)
        through_links = os.path.realpath(os.path.dirname(link)) != os.path.dirname(link)  # which may not be laid back
        is_replaced = any(
            place == link if tree.part else is_within(place, base) for place in (real, os.path.normpath(target_path))
        )
        if through_links or is_replaced or is_within(base, real):
            return False
        content = survey(Path(real), folder)  # also refuses what is not in the job's folder
        sealed_digests = {name: digests[tree.files[path + name].shard] for name in _suffixes(path, tree.files)}
        entries = {f"/{name}" if name else "": entry for name, entry in content.files.items()}
        return (
            {name: size for name, (size, _) in sealed_digests.items()}
            == {name: entry.mark[2] for name, entry in entries.items()}
            and {f"/{name}": leads for name, leads in content.links.items()}
            == {name: tree.links[path + name] for name in _suffixes(path, tree.links)}
            and sorted(f"/{name}" for name in content.folders) == sorted(filter(None, _suffixes(path, tree.folders)))
            and all(digest_of(Path(entry.source)) == sealed_digests[name] for name, entry in entries.items())
        )
    except (OSError, ValueError):  # it is gone, or cannot be read
        return False


def _suffixes(path: str, names: Iterable[str]) -> list[str]:
    """Return what follows `path` in the names of it and of what lies in it."""
    return [name[len(path) :] for name in names if is_within(name, path)]


def _except_below(path: str, things: Mapping[str, _Value]) -> dict[str, _Value]:
    return {name: thing for name, thing in things.items() if not is_within(name, path)}
