"""Damage to checkpoints at rest, by seed, and what a restore must make of it, told without the product's reading."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.drills.parts.storage_gang import Camp

SHARD = "zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def flip(chance: random.Random, path: Path, other: Path) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(chance: random.Random, path: Path, other: Path) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def empty(chance: random.Random, path: Path, other: Path) -> None:
    os.truncate(path, 0)


def remove(chance: random.Random, path: Path, other: Path) -> None:
    path.unlink()


def swap(chance: random.Random, path: Path, other: Path) -> None:
    """The other's bytes, sound in themselves: of another rank, step, tier or campaign."""
    shutil.copyfile(other, path)


def folder(chance: random.Random, path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def link(chance: random.Random, path: Path, other: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def pipe(chance: random.Random, path: Path, other: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def grow(chance: random.Random, path: Path, other: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0" * chance.randint(1, 4096))


def locked(chance: random.Random, path: Path, other: Path) -> None:
    path.chmod(0)


Damage = Callable[[random.Random, Path, Path], None]
DAMAGES: tuple[Damage, ...] = (flip, cut, empty, remove, swap, folder, link, pipe, grow, locked)


def checkpoint_files(camp: Camp) -> list[Path]:
    """Every file of every checkpoint on every tier: shards and manifests."""
    return sorted(path for path in camp.root.glob("*/tiny/step-*/**/*") if path.is_file() and not path.is_symlink())


def inflict(camp: Camp, chance: random.Random) -> list[tuple[str, Path]]:
    """One to six damages; the newest steps more often. Returns what was done to which file."""
    done: dict[Path, str] = {}
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        there = [path for path in checkpoint_files(camp) if path not in done and path.name != "elsewhere"]
        newest = max(_step(path) for path in there)
        near = [path for path in there if _step(path) == newest and newest not in {_step(p) for p in done}]
        path = chance.choice(near if near and chance.random() < 0.7 else there)
        others = [other for other in there if other.read_bytes() != path.read_bytes()]
        damage = chance.choice(DAMAGES)
        damage(chance, path, chance.choice(others))
        done[path] = damage.__name__
    return [(kind, path) for path, kind in done.items()]


def expected(camp: Camp, pristine: Camp) -> int | None:
    """The newest step that all ranks can load, by comparing bytes with what was once written; None: there is none."""
    steps = sorted({_step(path) for path in checkpoint_files(pristine)}, reverse=True)
    for step in steps:
        name = f"step-{step:08d}"
        if not any(_same(camp, pristine, f"{tier}/tiny/{name}/manifest.json") for tier in camp.every_tier()):
            continue
        if all(_rank_can_load(camp, pristine, name, rank) for rank in range(camp.ranks)):
            return step
    return None


def _rank_can_load(camp: Camp, pristine: Camp, step: str, rank: int) -> bool:
    attempt = next(path.name for path in (pristine.root / "shared/tiny" / step).glob("attempt-*"))
    names = ["mp_rank_00_model_states.pt", SHARD.format(rank=rank), f"rng_rank_{rank:05d}.pt"]
    tiers = (f"local-{rank // camp.ranks_per_node}", "shared")
    return all(any(_same(camp, pristine, f"{t}/tiny/{step}/{attempt}/{n}") for t in tiers) for n in names)


def _same(camp: Camp, pristine: Camp, relative: str) -> bool:
    here, there = camp.root / relative, pristine.root / relative
    if here.is_symlink() or not here.is_file() or not here.stat().st_mode & 0o400:
        return False
    return there.is_file() and here.read_bytes() == there.read_bytes()


def _step(path: Path) -> int:
    name = next(part for part in path.parts if part.startswith("step-"))
    return int(name.removeprefix("step-"))
