"""Signs of life of a job that prints nothing: its processor time, and the step that node 0 knows."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.request

from trainer.contract.exits import limit_of
from trainer.supervisor.family import Process, descendants_of
from trainer.supervisor.serving import PORT

_ANSWER_S, _PAUSE_S, _LONGEST = 2.0, 0.1, 1 << 20
_KNOCKS = 3


def processor_seconds(root: int, by_pid: dict[int, Process]) -> float:
    """Return the processor time of a living process and its living descendants, in seconds. torchrun gives each rank a
    session of its own, so a session does not hold them."""
    return sum(by_pid[pid].seconds for pid in {root} & set(by_pid) | descendants_of(root, by_pid))


def steps_of(rendezvous: str) -> tuple[int, int]:
    """Return node 0's step and its newest sealed one, 0 and -1 while it does not answer."""
    host = rendezvous.rpartition(":")[0]
    try:
        with urllib.request.urlopen(f"http://{host}:{PORT}/status", timeout=_ANSWER_S) as answer:
            status = json.loads(answer.read(_LONGEST))
        return int(status["step"]), int(status["committed_step"])
    # It may end while it answers, and what answers may be something else.
    except (OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException):
        return 0, -1


def serves(host: str) -> bool:
    """Return whether a node's supervisor may still serve. One that does not answer in time may be busy, so it is asked
    again; what stops this node from asking says nothing of it."""
    for _ in range(_KNOCKS):
        try:
            socket.create_connection((host, PORT), timeout=_ANSWER_S).close()
        except (TimeoutError, socket.timeout):  # two until Python 3.10
            continue
        except OSError as error:
            return bool(limit_of(error))
        return True
    return False


def await_silence(host: str, seconds: float) -> None:
    """Wait until a node's supervisor serves no more, for so long at most."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and serves(host):
        time.sleep(_PAUSE_S)
