"""The command line of a node's launcher, and the job's environment."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Mapping

from trainer.supervisor.place import Place

_RANK_ENDED = re.compile(r"^\s*exitcode\s*:\s*(-?\d+)")


def rank_code(line: str) -> int | None:
    """Return the exit code of the rank that failed first, from torchrun's summary; torchrun itself ends with 1."""
    match = _RANK_ENDED.match(line)
    return int(match.group(1)) if match else None


def command(job: Mapping[str, Any], place: Place, run: str) -> list[str]:
    """Return what a node starts: torchrun with one node's ranks, or the job's own command."""
    words = [str(word) for word in job["command"]]
    if job["launcher"] != "torchrun":
        return words
    host, _, port = place.rendezvous.rpartition(":")
    return [
        *(["torchrun"] if shutil.which("torchrun") else ["python3", "-m", "torch.distributed.run"]),
        f"--nnodes={place.node_count}",
        f"--nproc-per-node={place.ranks_per_node}",
        f"--node-rank={place.node_rank}",
        f"--master-addr={host}",
        f"--master-port={port}",
        "--max-restarts=0",  # the steward alone restarts: a rank that comes back finds no peers
        *words,
    ]  # fmt: skip


def environment(job: Mapping[str, Any], place: Place, resume: str, run: str) -> dict[str, str]:
    """Return the job's variables: its own, where its checkpoints go, from where it resumes (empty: from the start),
    and where the client of level 1 leaves its words."""
    host, _, port = place.rendezvous.rpartition(":")
    client = str(Path(sys.argv[0]).parent)  # the client lies beside the supervisor
    own = {str(name): str(value) for name, value in job.get("env", {}).items()}
    return {
        **own,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "NNODES": str(place.node_count),
        "NODE_RANK": str(place.node_rank),
        "BIVOUAC_CHECKPOINTS": str(job["checkpoints"]["folder"]),
        "BIVOUAC_RESUME_FROM": resume,
        "BIVOUAC_SAVE_EVERY": str(job.get("save_every", "")),
        "BIVOUAC_RUN": run,
        "PYTHONPATH": os.pathsep.join(filter(None, (own.get("PYTHONPATH", os.environ.get("PYTHONPATH")), client))),
    }
