"""Signs of life of a job that prints nothing: its processor time, and the step that node 0 knows."""

from __future__ import annotations

import json
import os
import urllib.request

from trainer.supervisor.serving import PORT

_ANSWER_S = 2.0


def processor_seconds(root: int) -> float:
    """Return the processor time of a living process and its living descendants, in seconds. torchrun gives each rank a
    session of its own, so a session does not hold them."""
    parents, ticks = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="latin-1") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(name)], ticks[int(name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = {root} & set(parents)
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def step_of(rendezvous: str) -> int:
    """Return node 0's step, 0 while it does not answer. Mostly only rank 0 prints."""
    host = rendezvous.rpartition(":")[0]
    try:
        with urllib.request.urlopen(f"http://{host}:{PORT}/status", timeout=_ANSWER_S) as answer:
            return int(json.loads(answer.read())["step"])
    except (OSError, ValueError, KeyError):
        return 0
