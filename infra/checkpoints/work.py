"""Operations on the checkpoints of a place; each reports progress and returns plain values."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infra.aws.parts import Altered
from infra.checkpoints.place import Place
from infra.console.words import size
from infra.errors import PermanentError, UserError
from infra.plain_files import sha256_of
from trainer.contract import COMMITTED_NAME, Manifest, Shard, step_folder
from trainer.contract.listing import Listed, StepVerdict

Tell = Callable[[str], None]
_AT_ONCE = 8


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
            found = list(pool.map(reading, manifest.shards))
        faults = [(shard.file, why) for shard, why in zip(manifest.shards, found, strict=True) if why is not None]
        if faults and place.manifest_bytes(step) is None:
            continue
        yield StepVerdict(step=step, bytes=_bytes(manifest), faults=tuple(faults))


def restore(place: Place, step: int, out: Path, tell: Tell) -> tuple[Path, int]:
    """Copy a step to `out`, each shard verified, its manifest last; return the folder and the bytes already there.

    A call after a kill continues. Raises `PermanentError` for a shard that is not sound in the place.
    """
    manifest, folder, before = place.manifest(step), out / step_folder(step), 0
    done = 0
    for shard in manifest.shards:
        target = folder / shard.file
        target.parent.mkdir(parents=True, exist_ok=True)
        tell(f"step {step}: {size(done)} of {size(_bytes(manifest))}, {shard.file}")
        if _is_there(target, shard):
            before += shard.size_bytes
        else:
            try:
                before += place.fetch(step, shard, target)
            except Altered as error:
                cure = "`bivouac checkpoints verify` lists all faults; restore another step"
                raise PermanentError(f"step {step} is not sound at {place.name}", seen=str(error), cure=cure) from error
        _to_disk(target)
        done += shard.size_bytes
    _write_last(folder / COMMITTED_NAME, manifest.serialize())
    return folder, before


@dataclass(frozen=True)
class Pruning:
    keep: tuple[int, ...]
    drop: tuple[Listed, ...]
    proven: int
    """Newest step of which every byte was just read."""


def pruning(place: Place, keep: int, protected: Collection[int], tell: Tell) -> Pruning:
    """Return what a pruning to the `keep` newest committed steps would remove. The newest proven step and the
    `protected` ones always stay.

    Raises `PermanentError` if no step is proven: then nothing may be removed.
    """
    rows = place.rows()
    committed = [row.step for row in rows if row.committed]
    proven = next((verdict.step for verdict in verify(place, committed, tell) if verdict.sound), None)
    if proven is None:
        seen = f"{len(committed)} committed steps at {place.name}, none of them sound"
        raise PermanentError("no step is proven, so nothing is removed", seen=seen, cure="see `checkpoints verify`")
    kept = {proven, *protected, *committed[:keep]}
    # A step newer than every kept step may still be written.
    drop = tuple(row for row in rows if row.step not in kept and row.step < max(kept))
    return Pruning(tuple(sorted(kept, reverse=True)), drop, proven)


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
    for each in (path, path.parent):
        descriptor = os.open(each, os.O_RDONLY)
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
