"""The agent's verification of a step on its local tier: it reads every byte, at low priority, and executes nothing.

It is apart from `restore` because the agent must not import torch before it has set torch's environment.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path

from trainer.builtin.checkpoint.files import open_regular
from trainer.contract import COMMITTED_NAME, Shard, parse_manifest, step_folder
from trainer.contract.listing import StepVerdict

_CHUNK_BYTES = 2**20
_NICENESS = 15
_ONE_AT_A_TIME = threading.Lock()


class Busy(Exception):
    """Another step of this node is being read."""


def verdict(root: Path, step: int, campaign: str, node: str) -> StepVerdict | None:
    """Verify the shards of a step on this node, also those kept for a neighbour; return None if it is not committed.

    Raises `Busy` while another step is being read: the training needs the disk.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise Busy
    try:
        with contextlib.suppress(OSError):
            # The priority of this thread only, which ends with its request.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        return _read(root / step_folder(step), step, campaign, node)
    finally:
        _ONE_AT_A_TIME.release()


def _read(folder: Path, step: int, campaign: str, node: str) -> StepVerdict | None:
    try:
        with open_regular(folder / COMMITTED_NAME) as file:
            manifest = parse_manifest(file.read(), step, campaign)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        return StepVerdict(tier="local", node=node, step=step, bytes=0, faults=((COMMITTED_NAME, str(error)[:300]),))
    size, faults = 0, []
    for shard in manifest.shards:
        read, why = _look(folder / shard.file, shard)
        size += read
        if why:
            faults.append((shard.file, why))
    return StepVerdict(tier="local", node=node, step=step, bytes=size, faults=tuple(faults))


def _look(path: Path, shard: Shard) -> tuple[int, str]:
    """Return the bytes read and the fault. A missing shard is no fault: it belongs to another node."""
    digest, size = hashlib.sha256(), 0
    try:
        with open_regular(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                # Leave the page cache to the training.
                os.posix_fadvise(file.fileno(), size, len(chunk), os.POSIX_FADV_DONTNEED)
                size += len(chunk)
    except FileNotFoundError:
        return 0, ""
    except OSError as error:
        return size, f"unreadable: {error.strerror or error}"
    seen = digest.hexdigest()
    return size, "" if seen == shard.sha256 else f"{size} of {shard.size_bytes} bytes, SHA-256 {seen}"
