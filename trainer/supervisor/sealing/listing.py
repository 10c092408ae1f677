"""The checkpoints on a node's own disk, as the steward asks any supervisor and the built-in trainer's agent for them:
`trainer.contract.listing`."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

from trainer.contract.exits import limit_of
from trainer.contract.rows import rows_of
from trainer.contract.sealed import MANIFEST, read_manifest, step_folder
from trainer.contract.tree import parse_tree
from trainer.supervisor import family, seal
from trainer.supervisor.serving import Answer

CHECKPOINTS, VERDICTS = "/checkpoints", "/verdicts/"
_ONE_AT_A_TIME = threading.Lock()


def answer(path: str, disk: Path | None, campaign: str, node: str) -> Answer | None:
    """Return the answer to a request, None for another path. `disk`: None where all lies on the shared tier."""
    if path == CHECKPOINTS:
        return 200, json.dumps({"rows": [] if disk is None else rows_of(disk, "local", campaign, node)}).encode()
    step = path[len(VERDICTS) :]
    if disk is None or not path.startswith(VERDICTS) or not step.isdecimal():
        return None
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        return 429, b"another step is being read\n"
    try:
        family.give_way()  # this thread ends with its request
        verdict_row = verdict(disk, int(step), campaign, node)
    finally:
        _ONE_AT_A_TIME.release()
    return None if verdict_row is None else (200, json.dumps(verdict_row).encode())


def verdict(disk: Path, step: int, campaign: str, node: str) -> dict[str, Any] | None:
    """Read every byte of a step that is here; return its `StepVerdict`, None for a step that is not. Raises the
    `OSError` of a limit, which is no fault of the step."""
    if step not in seal.committed(disk):
        return None
    faults, size, place = [], 0, disk / step_folder(step)
    try:
        shards = read_manifest((place / MANIFEST).read_bytes(), step, campaign)["shards"]
    except (OSError, ValueError) as error:
        if limit_of(error):
            raise
        faults, shards = [[MANIFEST, str(error)[:300]]], []
    for shard in shards:
        try:
            size_and_digest = seal.digest_of(place / shard["file"])
        except FileNotFoundError:
            continue  # another node's
        except OSError as error:
            if limit_of(error):
                raise
            faults.append([_with_name(place, shard["file"]), f"unreadable: {error.strerror or error}"])
            continue
        size += size_and_digest[0]
        if size_and_digest != (shard["size_bytes"], shard["sha256"]):
            fault = "{} of {} bytes, SHA-256 {}".format(size_and_digest[0], shard["size_bytes"], size_and_digest[1])
            faults.append([_with_name(place, shard["file"]), fault])
    return {"tier": "local", "node": node, "step": step, "bytes": size, "faults": faults}


def _with_name(place: Path, shard: str) -> str:
    """Return a shard with the job's name of its file beside it, as far as a tree on this disk tells it."""
    for path in sorted((place / shard).parent.glob("tree-*.json")):
        with contextlib.suppress(OSError, ValueError):
            if name := parse_tree(path.read_bytes()).names.get(shard.rpartition("/")[2]):
                return f"{shard} ({name})"
    return shard
