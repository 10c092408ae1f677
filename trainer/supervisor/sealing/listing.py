"""The checkpoints on a node's own disk, as the steward asks for them: `trainer.contract.listing`."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any, Tuple

from trainer.contract.tree import own_name, parse_tree
from trainer.supervisor import family, seal
from trainer.supervisor.sealing.manifest import MANIFEST, opened, step_folder

CHECKPOINTS, VERDICTS = "/checkpoints", "/verdicts/"
Answer = Tuple[int, bytes]
"""Code of HTTP and content."""
_ONE_AT_A_TIME = threading.Lock()


def answer(path: str, disk: Path | None, campaign: str, node: str) -> Answer | None:
    """Return the answer to a request, None for another path. `disk`: None where all lies on the shared tier."""
    if path == CHECKPOINTS:
        return 200, json.dumps({"rows": [] if disk is None else rows(disk, campaign, node)}).encode()
    step = path[len(VERDICTS) :]
    if disk is None or not path.startswith(VERDICTS) or not step.isdecimal():
        return None
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        return 429, b"another step is being read\n"
    try:
        family.give_way()  # this thread ends with its request
        found = verdict(disk, int(step), campaign, node)
    finally:
        _ONE_AT_A_TIME.release()
    return None if found is None else (200, json.dumps(found).encode())


def rows(disk: Path, campaign: str, node: str) -> list[dict[str, Any]]:
    """Return `Listed` of each committed step, newest first."""
    found = []
    for step in seal.committed(disk):
        row: dict[str, Any] = {"tier": "local", "node": node, "step": step}
        try:
            manifest = _manifest(disk, step, campaign)
        except (OSError, ValueError, KeyError, TypeError) as error:
            found.append({**row, "committed": False, "why": f"{MANIFEST}: {error}", "damaged": True})
            continue
        shards = manifest["shards"]
        here = [one for one in shards if _size(disk / step_folder(step) / one["file"]) == one["size_bytes"]]
        away = len(shards) - len(here)
        told = ("attempt", "tokens", "loss", "evaluation_loss", "world_size", "zero_stage")
        found.append(
            {
                **row, **{name: manifest[name] for name in told}, "committed": True, "shards": len(shards),
                "here": len(here), "bytes": sum(one["size_bytes"] for one in here),
                "why": f"{away} of {len(shards)} shards are not here" if away else "",
                "name": _own_name(disk / step_folder(step), shards),
            }
        )  # fmt: skip
    return found


def verdict(disk: Path, step: int, campaign: str, node: str) -> dict[str, Any] | None:
    """Read every byte of a step that is here; return its `StepVerdict`, None for a step that is not."""
    if step not in seal.committed(disk):
        return None
    faults, size, place = [], 0, disk / step_folder(step)
    try:
        for shard in _manifest(disk, step, campaign)["shards"]:
            path = place / shard["file"]
            if not path.exists():
                continue  # another node's
            seen = seal.digest_of(path)
            size += seen[0]
            if seen != (shard["size_bytes"], shard["sha256"]):
                faults.append([_with_name(place, shard["file"]), f"{seen[0]} bytes, SHA-256 {seen[1]}"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        faults.append([MANIFEST, str(error)])
    return {"tier": "local", "node": node, "step": step, "bytes": size, "faults": faults}


def _manifest(disk: Path, step: int, campaign: str) -> dict[str, Any]:
    return opened((disk / step_folder(step) / MANIFEST).read_bytes(), step, campaign, "")


def _with_name(place: Path, shard: str) -> str:
    """Return a shard with the job's name of its file beside it, as far as a tree on this disk tells it."""
    for path in sorted((place / shard).parent.glob("tree-*.json")):
        with contextlib.suppress(OSError, ValueError):
            if name := parse_tree(path.read_bytes()).names.get(shard.rpartition("/")[2]):
                return f"{shard} ({name})"
    return shard


def _own_name(place: Path, shards: list[dict[str, Any]]) -> str:
    return own_name((one["file"] for one in shards), lambda name: (place / name).read_bytes())


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return -1
