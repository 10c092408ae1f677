"""Operations on the checkpoints of a place; each reports progress and returns plain values."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from infra.aws.parts import Altered
from infra.checkpoints.place import Place
from infra.console.words import size
from infra.errors import PermanentError, UserError
from infra.plain_files import sha256_of
from trainer.contract import COMMITTED_NAME, Manifest, Shard, step_folder
from trainer.contract.listing import Listed, StepVerdict
from trainer.contract.sealed import removable
from trainer.contract.tree import Tree, TreeFile, lay_out, path_of, printable, tree_of

Tell = Callable[[str], None]
_AT_ONCE = 8
_ARRIVING = ".arriving"
"""Folder for shards that are on their way: the job's own names may leave no room for a suffix."""


def verify(place: Place, steps: list[int], tell: Tell) -> Iterator[StepVerdict]:
    """Read every shard of these listed steps; raise `UserError` for a step with a damaged manifest.

    A step that vanishes meanwhile is omitted: training's retention removes the oldest, which is read last.
    """
    for step in steps:
        try:
            manifest = place.manifest(step)
        except UserError:
            if place.manifest_bytes(step) is None:
                continue
            raise
        reading = partial(_read, place, step, manifest, tell)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            results = list(pool.map(reading, manifest.shards))
        faults = [
            (shard.file, fault) for shard, fault in zip(manifest.shards, results, strict=True) if fault is not None
        ]
        if faults and place.manifest_bytes(step) is None:
            continue
        faults = _by_job_names(place, manifest, faults)
        yield StepVerdict(step=step, bytes=_bytes(manifest), faults=tuple(faults))


def job_tree(place: Place, manifest: Manifest) -> Tree | None:
    """Return the job's own tree of a step, None for one of the built-in trainer. Raises `PermanentError` for a tree
    that cannot be read or is not what was sealed."""
    shards = {shard.file: shard for shard in manifest.shards}
    if manifest.position or manifest.zero_stage or manifest.consumed:  # no supervisor writes these
        return None

    def read(name: str) -> bytes:
        content = place.content(manifest.step, name)
        if (digest := hashlib.sha256(content).hexdigest()) != shards[name].sha256:
            raise Altered(f"{name}: SHA-256 {digest}")
        return content

    try:
        return tree_of(shards, read)
    except (Altered, ValueError) as error:
        raise _unsound(place, manifest.step, error) from error


@dataclass(frozen=True)
class Restored:
    folder: Path
    """The job's file or folder, or the step's folder of shards."""
    before_bytes: int
    """What an earlier try had brought."""
    tree: Tree | None = None
    """The job's own; None: shards and manifest."""
    of_job: bool = True
    """False: the built-in trainer's."""


def restore_for_use(place: Place, step: int, base: Path, tell: Tell, as_shards: bool = False) -> Restored:
    """Bring a step to `base` in the form that its writer loads: a job's own tree, or the built-in trainer's shards.
    `as_shards`: shards and manifest also of a job. A call after a kill continues.

    Raises `PermanentError` for a shard that is not sound, and `UserError` where other files stand in the way.
    """
    manifest = place.manifest(step)
    tree = job_tree(place, manifest)
    if tree is None or as_shards:
        return Restored(*restore(place, step, base, tell), of_job=tree is not None)
    folder, present_bytes, done_bytes = base / step_folder(step), 0, 0
    target = folder / path_of(tree.name)
    _insist_on_room(target, tree)
    arriving = folder / _ARRIVING
    arriving.mkdir(parents=True, exist_ok=True)
    shards = {shard.file.rpartition("/")[2]: shard for shard in manifest.shards}

    def fetch_all(files: Sequence[tuple[TreeFile, Path]]) -> None:
        nonlocal present_bytes, done_bytes
        for file, path in files:
            shard = shards[file.shard]
            tell(f"step {step}: {size(done_bytes)} of {size(_bytes(manifest))}, {tree.names[file.shard]}")
            if _is_there(path, shard):
                present_bytes += shard.size_bytes
            else:
                present_bytes += _fetch(place, step, shard, arriving / file.shard)
                os.replace(arriving / file.shard, path)
            _to_disk(path)
            done_bytes += shard.size_bytes

    lay_out(tree, target, fetch_all)
    shutil.rmtree(arriving)
    return Restored(target, present_bytes, tree)


def difference(left: tuple[Tree, Manifest], right: tuple[Tree, Manifest]) -> dict[str, Any]:
    """Compare two steps of jobs by the digests of their files, each under its path below the checkpoint."""
    digests, other_digests = (_digests(*pair) for pair in (left, right))
    descriptions = [
        (tree.links, sorted(tree.folders), manifest.loss, manifest.tokens) for tree, manifest in (left, right)
    ]
    names = ("links", "folders", "loss", "tokens")
    return {
        "steps": [left[1].step, right[1].step],
        "metadata": {name: [a, b] for name, a, b in zip(names, *descriptions, strict=True) if a != b},
        "only_in_first": sorted(digests.keys() - other_digests.keys()),
        "only_in_second": sorted(other_digests.keys() - digests.keys()),
        "shards": [
            {"shard": name, "equal": digests[name] == other_digests[name], "tensors": []}
            for name in sorted(digests.keys() & other_digests.keys())
        ],
    }


def _digests(tree: Tree, manifest: Manifest) -> dict[str, str]:
    digests = {shard.file.rpartition("/")[2]: shard.sha256 for shard in manifest.shards}
    return {printable(path or tree.name): digests[file.shard] for path, file in tree.files.items()}


def newest_sound(place: Place, steps: list[int], tell: Tell) -> int | None:
    """Return the newest of these steps, newest first, of which every byte is as it was sealed."""
    return next((verdict.step for verdict in verify(place, steps, tell) if verdict.sound), None)


def _insist_on_room(target: Path, tree: Tree) -> None:
    """Raise `UserError` if other files lie where a job's tree is to come: they would be taken for the checkpoint's."""
    paths = {target / path_of(path) for path in (*tree.files, *tree.links, *tree.folders)}
    strays = () if target.is_file() else (path for path in target.rglob("*") if not path.is_dir() and path not in paths)
    if (stray := next(iter(strays), None)) is not None:
        raise UserError("other files lie where the checkpoint is to come", seen=stray, cure="name an empty folder")


def _fetch(place: Place, step: int, shard: Shard, target: Path) -> int:
    try:
        return place.fetch(step, shard, target)
    except Altered as error:
        raise _unsound(place, step, error) from error


def _unsound(place: Place, step: int, error: Exception) -> PermanentError:
    cure = "`bivouac checkpoints verify` lists all faults; restore another step"
    return PermanentError(f"step {step} is not sound at {place.name}", seen=str(error), cure=cure)


def restore(place: Place, step: int, base: Path, tell: Tell) -> tuple[Path, int]:
    """Copy a step to `base`, each shard verified, its manifest last; return the folder and the bytes already there.

    A call after a kill continues. Raises `PermanentError` for a shard that is not sound in the place.
    """
    manifest, folder, present_bytes = place.manifest(step), base / step_folder(step), 0
    done_bytes = 0
    for shard in manifest.shards:
        target = folder / shard.file
        target.parent.mkdir(parents=True, exist_ok=True)
        tell(f"step {step}: {size(done_bytes)} of {size(_bytes(manifest))}, {shard.file}")
        if _is_there(target, shard):
            present_bytes += shard.size_bytes
        else:
            present_bytes += _fetch(place, step, shard, target)
        _to_disk(target)
        done_bytes += shard.size_bytes
    _write_last(folder / COMMITTED_NAME, manifest.serialize())
    return folder, present_bytes


def _by_job_names(place: Place, manifest: Manifest, faults: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return faults with the job's name of each file beside its shard's; a fault of the tree itself for a bad one."""
    try:
        tree = job_tree(place, manifest)
    except PermanentError as error:
        return faults or [(COMMITTED_NAME, str(error.seen))]
    names = {} if tree is None else tree.names
    job_names = {file: names.get(file.rpartition("/")[2]) for file, _ in faults}
    return [(f"{file} ({job_names[file]})" if job_names[file] else file, fault) for file, fault in faults]


@dataclass(frozen=True)
class Pruning:
    keep: tuple[int, ...]
    drop: tuple[Listed, ...]
    proven: int
    """Newest step of which every byte was just read."""


def pruning(place: Place, keep: int, protected_steps: Collection[int], tell: Tell) -> Pruning:
    """Return what a pruning to the `keep` newest sound steps would remove. The newest proven step and the
    `protected_steps` always stay, and so does what is newer than these: it may still be written.

    Raises `PermanentError` if no step is proven: then nothing may be removed.
    """
    rows, unsound = place.rows(), set[int]()
    committed_steps = [row.step for row in rows if row.committed]
    for verdict in verify(place, committed_steps, tell):
        if verdict.sound:
            break
        unsound.add(verdict.step)
    else:
        evidence = f"{len(committed_steps)} committed steps at {place.name}, none of them sound"
        raise PermanentError("no step is proven, so nothing is removed", seen=evidence, cure="see `checkpoints verify`")
    unsound |= {row.step for row in rows if not row.committed or row.here != row.shards}
    removable_steps = set(removable([row.step for row in rows], keep, unsound, {verdict.step, *protected_steps}))
    kept_steps = tuple(step for step in committed_steps if step not in removable_steps)
    return Pruning(kept_steps, tuple(row for row in rows if row.step in removable_steps), verdict.step)


def prune(place: Place, plan: Pruning, tell: Tell) -> None:
    for row in plan.drop:
        tell(f"removing step {row.step}")
        place.remove(row.step)


def _read(place: Place, step: int, manifest: Manifest, tell: Tell, shard: Shard) -> str | None:
    tell(f"step {step}: reading {shard.file}, {size(shard.size_bytes)} of {size(_bytes(manifest))}")
    return place.fault(step, shard)


def _is_there(target: Path, shard: Shard) -> bool:
    return target.exists() and sha256_of(target) == shard.sha256


def _bytes(manifest: Manifest) -> int:
    return sum(shard.size_bytes for shard in manifest.shards)


def _to_disk(path: Path) -> None:
    """Flush a file and its folder entry: the manifest that follows vouches for both."""
    for entry in (path, path.parent):
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_last(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
