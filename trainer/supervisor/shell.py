"""How `mpirun` starts its daemons on the other nodes: its remote shell, from supervisor to supervisor.

`mpirun` calls a program (`ssh`, if nobody names another) with a host and a command. Here the program is the file of the
supervisor itself. The node that is called runs the command below its own supervisor, with the variables of container
and job, which a login by sshd would lose. sshd also needs rights that the job's pods do not have.

Each command is signed with the job's key, which the MPI operator makes for it and mounts in its pods, and with a word
that the called node makes for this one call.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, Mapping, Sequence

from trainer.supervisor.ends import INTERRUPTED

CALL, LISTEN = "mpi-shell", "mpi-node"
"""First arguments with which the supervisor's file is one or the other end."""
PORT = 8472
HOSTS = "/etc/mpi/hostfile"
"""Written by the operator: a line `name slots=N` for each node, node 0 first."""
KEY = "/bivouac-mpi/id_rsa"
"""Of the operator's secret, below `trainer.contract.workload.MPI_KEYS`."""
_COMES_UP_S, _ANSWER_S, _PAUSE_S = 600.0, 5.0, 0.5
"""For a node's container to start, and for one that runs to answer."""
_LONGEST = 1 << 20


def hosts() -> list[str]:
    """Return the nodes' names, node 0 first."""
    lines = Path(os.environ.get("BIVOUAC_MPI_HOSTS", HOSTS)).read_text().splitlines()
    return [line.split()[0] for line in lines if line.strip()]


def _key() -> bytes:
    return Path(os.environ.get("BIVOUAC_MPI_KEY", KEY)).read_bytes()


def _signature(word: str, request: str) -> str:
    return hmac.new(_key(), (word + request).encode(), hashlib.sha256).hexdigest()


class _Node(ThreadingTCPServer):
    """The end that is called. `over`: node 0 has said how the job ended, which is `end`."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(self, address: str) -> None:
        super().__init__((address, PORT), _Call)
        self.over = threading.Event()
        self.end: Mapping[str, Any] = {}


class _Call(StreamRequestHandler):
    server: _Node

    def handle(self) -> None:
        word = secrets.token_hex(16)
        self.wfile.write((word + "\n").encode())
        try:
            request_text, signature = json.loads(self.rfile.readline(_LONGEST))
        except (ValueError, TypeError):
            return
        if not hmac.compare_digest(_signature(word, request_text), signature):
            return
        request = json.loads(request_text)
        if "end" in request:
            self.server.end = request["end"]
            self.wfile.write(b"0\n")
            self.server.over.set()
            return
        # In a session of its own: the signal that asks the job to stop is for node 0's `mpirun`, which asks the ranks.
        code = subprocess.call(["/bin/sh", "-c", request["command"]], stdin=subprocess.DEVNULL, start_new_session=True)
        self.wfile.write(f"{code}\n".encode())


def listen(address: str, node_rank: int) -> int:
    """Run what node 0 sends, until it says how the job ended; return what this node's share of it ends with."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # not ignored: the ranks would inherit that
    with _Node(address) as node:
        threading.Thread(target=node.serve_forever, name="calls", daemon=True).start()
        node.over.wait()
    code, is_own = int(node.end["code"]), node.end["node"] == node_rank
    if not code:
        return 0
    print(f"mpirun on node 0 ended with {code}{' for a rank of this node' if is_own else ''}{node.end['words']}")
    return code if is_own else INTERRUPTED


def call(words: Sequence[str]) -> int:
    """Be the remote shell of `mpirun`: run a command on a host, and end with its code. Options of ssh mean nothing."""
    arguments = list(words)
    while arguments and arguments[0].startswith("-"):
        del arguments[: 2 if arguments[0] in ("-o", "-p", "-l", "-i") else 1]
    if len(arguments) < 2:
        print(f"a remote shell takes a host and a command: {list(words)}", file=sys.stderr)
        return 255
    return _ask(arguments[0], {"command": " ".join(arguments[1:])}, _COMES_UP_S)


def tell_end(code: int, culprit: int | None, words: str) -> None:
    """Tell all other nodes how `mpirun` ended, whose rank ended it, and the last words of the job. Nodes that are gone
    are left out."""
    end = {"end": {"code": code, "node": culprit, "words": words}}
    calls = [threading.Thread(target=_ask, args=(host, end, 0.0), daemon=True) for host in hosts()[1:]]
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join()


def _ask(host: str, request: Mapping[str, Any], patience_s: float) -> int:
    """Have a node do something; return its answer, 255 if it does not answer or does not know our key."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            line = socket.create_connection((host, PORT), timeout=_ANSWER_S)
            break
        except OSError as error:  # its container has not started, or its name is not known yet
            if time.monotonic() >= deadline:
                print(f"node {host} cannot be called: {error}", file=sys.stderr)
                return 255
        time.sleep(_PAUSE_S)
    with line, line.makefile("rwb") as file:
        try:
            request_text = json.dumps(request)
            word = file.readline(_LONGEST).decode().strip()
            file.write((json.dumps([request_text, _signature(word, request_text)]) + "\n").encode())
            file.flush()
            if "command" in request:
                line.settimeout(None)  # as long as the job runs
            return int(file.readline(_LONGEST) or 255)
        except (OSError, ValueError) as error:
            print(f"node {host} does not answer: {error}", file=sys.stderr)
            return 255
