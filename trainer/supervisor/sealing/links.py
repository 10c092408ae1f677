"""Links of a checkpoint to elsewhere in the job's folder: again links where they lead to the bytes that were sealed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable, Mapping, TypeVar

from trainer.contract.tree import Tree, path_of
from trainer.supervisor.sealing.copying import SizeAndDigest, digest_of
from trainer.supervisor.sealing.survey import survey, within

_Value = TypeVar("_Value")


def with_links(tree: Tree, root: Path, digests: Mapping[str, SizeAndDigest]) -> Tree:
    """Return the tree as it is to be laid back at `root`: what was taken through a link is that link, where its target
    is as it was, and files else. `digests`: shard -> size and SHA-256."""
    for path, target in sorted(tree.through.items()):  # a folder before what lies in it
        if (path in tree.files or path in tree.folders) and _leads_to_it(tree, path, target, root, digests):
            links = {**_beside(path, tree.links), path: target}
            folders = [folder for folder in tree.folders if not within(folder, path)]
            tree = tree._replace(files=_beside(path, tree.files), links=links, folders=folders)
    return tree


def _leads_to_it(tree: Tree, path: str, target: str, root: Path, digests: Mapping[str, SizeAndDigest]) -> bool:
    """Return whether a link at `path` would lead to what was sealed there, and stays when `root` is replaced."""
    folder = root if tree.root == "." else root.parents[tree.root.count("/")]
    base = os.path.join(os.path.realpath(str(root.parent)), root.name)
    at = os.path.join(base, path_of(path))
    led = os.path.join(os.path.dirname(at), path_of(target))
    try:
        real = os.path.realpath(led)
        through_links = os.path.realpath(os.path.dirname(at)) != os.path.dirname(at)  # which may not be laid back
        replaced = any(place == at if tree.part else within(place, base) for place in (real, os.path.normpath(led)))
        if through_links or replaced or within(base, real):
            return False
        there = survey(Path(real), folder)  # also refuses what is not in the job's folder
        wanted = {name: digests[tree.files[path + name].shard] for name in _below(path, tree.files)}
        here = {f"/{name}" if name else "": entry for name, entry in there.files.items()}
        return (
            {name: size for name, (size, _) in wanted.items()} == {name: entry.mark[2] for name, entry in here.items()}
            and {f"/{name}": leads for name, leads in there.links.items()}
            == {name: tree.links[path + name] for name in _below(path, tree.links)}
            and sorted(f"/{name}" for name in there.folders) == sorted(filter(None, _below(path, tree.folders)))
            and all(digest_of(Path(entry.source)) == wanted[name] for name, entry in here.items())
        )
    except (OSError, ValueError):  # it is gone, or cannot be read
        return False


def _below(path: str, names: Iterable[str]) -> list[str]:
    """Return what follows `path` in the names of it and of what lies in it."""
    return [name[len(path) :] for name in names if within(name, path)]


def _beside(path: str, things: Mapping[str, _Value]) -> dict[str, _Value]:
    return {name: thing for name, thing in things.items() if not within(name, path)}
