"""The number of ranks that a job's own command starts on this node, where no launcher of ours starts them.

A format's last file may appear while ranks still write theirs, so the number tells whether a checkpoint is whole.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any, Iterable, Mapping

from trainer.supervisor.place import Place

SETTLED_S = 30.0
"""Ranks that save the same step end within this time of each other."""
_OF_A_NODE = (b"LOCAL_WORLD_SIZE", b"OMPI_COMM_WORLD_LOCAL_SIZE", b"MPI_LOCALNRANKS")
_OF_ALL_NODES = (b"WORLD_SIZE", b"PMI_SIZE")
"""Variables of the processes that torchrun, `accelerate launch`, `deepspeed`, Open MPI and MPICH start."""
_OF_A_RANK = re.compile(r"(rng_state|random_states)_\d+\.(pth|pkl)|.*optim_states\.pt")


class RankCount:
    """One rank per GPU, until the environment of the job's processes or its checkpoints show another number."""

    def __init__(self, config: Mapping[str, Any], place: Place) -> None:
        self.here, self._nodes = place.ranks_per_node, place.node_count
        self._nodes_in_folder = 1 if config["checkpoints"].get("tier") == "local" else self._nodes
        self._is_known = False
        self._most, self._since = 0, 0.0

    def look(self, processes: Iterable[int], folder: Path) -> int:
        """Return the number by what processes and checkpoints show now."""
        if not self._is_known and (number := max(map(self._of_environment, processes), default=0)):
            self.here, self._is_known = number, True
        if not self._is_known:
            self._count_files(folder)
        return self.here

    def _of_environment(self, pid: int) -> int:
        """Return the number that a process was started with, 0 for none."""
        with contextlib.suppress(OSError, ValueError):  # it has ended, or is another user's
            rows = (row.partition(b"=") for row in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            values = {name: value for name, _, value in rows}
            here = [int(values[name]) for name in _OF_A_NODE if name in values]
            return (here or [int(values[name]) // self._nodes for name in _OF_ALL_NODES if name in values] or [0])[0]
        return 0

    def _count_files(self, folder: Path) -> None:
        """Take the most files of ranks in one checkpoint for the number, once they have stopped rising."""
        with contextlib.suppress(OSError):  # the job removes a folder meanwhile
            paths = itertools.chain(folder.glob("*/*"), folder.glob("*/*/*"))
            most = max(Counter(path.parent for path in paths if _OF_A_RANK.fullmatch(path.name)).values(), default=0)
            if most > self._most:
                self._most, self._since = most, time.monotonic()
                self.here = max(self.here, most // self._nodes_in_folder)
            elif most and time.monotonic() - self._since >= SETTLED_S:
                self.here, self._is_known = max(1, most // self._nodes_in_folder), True
