"""The process that imports a job's modules once and forks its ranks: `python3 supervisor.pyz warm-ranks ASKED`.

It runs in the job's own interpreter and never touches CUDA, since no process can be forked that has. The supervisor
(`job`) holds the other end of a socket: one line of JSON there starts all ranks of this node, this side answers with
one for each rank's end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from typing import Any, Mapping, Sequence

from trainer.supervisor.ends import USER
from trainer.supervisor.place import Place

CALL = "warm-ranks"
"""First argument with which the supervisor's file is this process."""
MODULE = "--module"
"""First word of a command that names a Python module instead of a script; it is torchrun's."""
SOCKET = "BIVOUAC_WARM_SOCKET"
"""Variable with the number of the open socket."""


def main(request: Mapping[str, Any]) -> int:
    """Fork the ranks as often as the supervisor says so; return 0 if all of the last ones ended with it. In a rank it
    does not return: the script ends as in an interpreter of its own."""
    line = socket.socket(fileno=int(os.environ.pop(SOCKET)))
    place = Place.from_environment()
    if not _import_modules(request["warm"], request["command"], place.ranks_per_node):
        return USER
    # A stop signal goes to the whole group. This process handles it, since the ranks would inherit that it is ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    torch_variables = {
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }  # fmt: skip
    gc.freeze()  # a collection in a rank would copy the pages that it shares
    worst = 0
    orders = line.makefile("r")
    for start, text in enumerate(orders):
        order = json.loads(text)
        if start:
            os.write(1, b"\n")  # a rank that was killed may have left a part of a line
        ranks = {}
        for local in range(place.ranks_per_node):
            pid = os.fork()
            if not pid:
                orders.close()
                line.close()
                os.environ.update({**order["variables"], **torch_variables, **place.rank_variables(local)})
                _be_new()
                _run([str(word) for word in order["command"] or request["command"]])
                raise SystemExit(0)
            ranks[pid] = local
        worst = _ends(ranks, place.ranks_per_node * place.node_rank, line)
    return worst


def _run(command: Sequence[str]) -> None:
    """Run a script, or, after `--module`, a module, as an interpreter of its own would."""
    if command[0] == MODULE:
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        runpy.run_path(command[0], run_name="__main__")


def _import_modules(modules: Sequence[str], command: Sequence[str], ranks: int) -> bool:
    """Import the modules as the script would; say why it is impossible."""
    # The script's own packages, one of them perhaps called `trainer`, are found as if this process were the script.
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainer"]:
        del sys.modules[name]
    sys.path[0] = os.getcwd() if command[0] == MODULE else os.path.dirname(os.path.abspath(command[0]))
    if ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun's; torch reads it at its import
    # `torch.cuda.is_available()` at a module's import would initialise CUDA; so it asks NVML.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"workload.warm: {name} cannot be imported before the ranks are forked: {error!r}")
            return False
        if _cuda_is_initialised():
            print(f"workload.warm: importing {name} initialises CUDA, so no rank can be forked: leave it out")
            return False
    return True


def _cuda_is_initialised() -> bool:
    """Return whether CUDA is initialised. Only in a forked process does torch tell it also of calls past torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    pid = os.fork()
    if not pid:
        os._exit(int(bool(torch.cuda._is_in_bad_fork())))
    return os.waitpid(pid, 0)[1] != 0


def _be_new() -> None:
    """Undo in a rank what a fork shares and a process of its own would not have."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # `random` does it by itself, torch begins with a fixed seed in each process
        numpy.random.seed()


def _ends(ranks: dict[int, int], first_rank: int, line: socket.socket) -> int:
    """Tell the end of each rank; return 1 if one has failed."""
    worst = 0
    while ranks:
        pid, status = os.waitpid(-1, 0)
        if pid not in ranks:
            continue
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        worst = worst or int(code != 0)
        rank_end = {"rank": first_rank + ranks.pop(pid), "code": code, "left": len(ranks)}
        with contextlib.suppress(OSError):  # the supervisor has ended: it kills what is left
            line.sendall((json.dumps(rank_end) + "\n").encode())
    return worst
