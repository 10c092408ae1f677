"""Processes forked from one that has imported torch and DeepSpeed: what a test starts begins at once.

Run as a program this is the warm process. It reads one JSON line per start and writes one per start and per end.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.root import ROOT

AGENT = "from trainer.builtin import agent; agent._exit(agent.main())"
SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
"""What an agent sets before it imports torch, which is too late for one that is forked."""
NAMED = ("transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama")
"""Modules of which every rank of a named model makes use: it takes 2 s to import them."""
_POLL_S = 0.01


class Process:
    """A started program, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, warm: WarmStart, pid: int) -> None:
        self._warm, self.pid = warm, pid

    @property
    def returncode(self) -> int | None:
        return self._warm.ended(self.pid)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int:
        while (code := self._warm.ended(self.pid, _POLL_S)) is None:
            pass
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmStart:
    """The warm process from the outside. It ends, and all that it forked, when its input closes."""

    def __init__(self) -> None:
        environment = os.environ | SETTINGS | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.trainer.warm"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._codes: dict[int, int] = {}
        self._rest = b""
        atexit.register(self._input.close)

    def start(
        self,
        program: str,
        arguments: list[str],
        environment: dict[str, str],
        log: Path,
        errors: Path | None = None,
        ahead: Sequence[str] = (),
    ) -> Process:
        """Fork; the child executes `program` with these arguments. Output goes to `log`, errors too or apart. `ahead`:
        modules that the warm process imports before, once for all."""
        request = {"program": program, "argv": ["-c", *arguments], "env": environment, "ahead": ahead}
        request |= {"log": str(log), "errors": str(errors or log)}
        self._input.write(json.dumps(request).encode() + b"\n")
        while True:
            for answer in self._answers(None):
                if "pid" in answer:
                    return Process(self, answer["pid"])

    def ended(self, pid: int, wait_s: float = 0) -> int | None:
        """Return the exit code as `subprocess` writes it; None while the process runs."""
        if pid not in self._codes:
            self._answers(wait_s)
        return self._codes.get(pid)

    def _answers(self, wait_s: float | None) -> list[dict[str, Any]]:
        if not select.select([self._output], [], [], wait_s)[0]:
            return []
        more = self._output.read(65536)
        assert more, "the warm process has ended"
        *lines, self._rest = (self._rest + more).split(b"\n")
        answers = [json.loads(line) for line in lines]
        self._codes |= {answer["ended"]: answer["code"] for answer in answers if "ended" in answer}
        return answers


@functools.cache
def warm() -> WarmStart:
    return WarmStart()


def start_module(
    name: str,
    arguments: list[str],
    environment: dict[str, str],
    log: Path,
    errors: Path | None = None,
    ahead: Sequence[str] = (),
) -> Process:
    """`python -m NAME` in a fork of the warm process."""
    program = f"import runpy; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    return warm().start(program, arguments, environment | SETTINGS, log, errors, ahead)


def run_module(name: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m NAME` in a fork of the warm process to its end; its output lies in `folder`."""
    out, errors = folder / f"{name}.out", folder / f"{name}.err"
    errors.unlink(missing_ok=True)
    code = start_module(name, list(arguments), dict(os.environ), out, errors).wait()
    return subprocess.CompletedProcess([name, *arguments], code, out.read_text(), errors.read_text())


def run_ranks(rank: Callable[..., None], count: int, folder: Path, **arguments: Any) -> None:
    """Call a function of a module with `folder` and what JSON holds, in forks of the warm process that are the ranks of
    one node. An error of one of them fails the test."""
    program = f"import json, sys; from {rank.__module__} import {rank.__name__} as rank; from pathlib import Path; "
    program += "rank(folder=Path(sys.argv[1]), **json.loads(sys.argv[2]))"
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1]), "WORLD_SIZE": str(count)}
    logs = [folder / f"rank-{number}.log" for number in range(count)]
    started = [
        warm().start(
            program, [str(folder), json.dumps(arguments)],
            os.environ | SETTINGS | place | {"RANK": str(number), "LOCAL_RANK": str(number)}, log,
        )
        for number, log in enumerate(logs)
    ]  # fmt: skip
    codes = [process.wait() for process in started]
    assert codes == [0] * count, "".join(log.read_text()[-3000:] for log in logs)


def _serve() -> None:
    import deepspeed  # noqa: F401
    import torch._dynamo  # noqa: F401  optimizers import it at their first step

    import trainer.builtin.agent
    import trainer.builtin.assembly
    import trainer.builtin.ranks  # noqa: F401

    gc.freeze()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    running: set[int] = set()
    rest = b""
    while True:
        if select.select([0], [], [], _POLL_S)[0]:
            more = os.read(0, 65536)
            if not more:
                break
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                request = json.loads(line)
                _import(request["ahead"])
                pid = _fork(request)
                running.add(pid)
                answers.write(json.dumps({"pid": pid}).encode() + b"\n")
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                answers.write(json.dumps({"ended": pid, "code": code}).encode() + b"\n")
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _import(names: Sequence[str]) -> None:
    """Import modules, and let no fork look through them for garbage: a loop of training does so three times."""
    for name in names:
        if name not in sys.modules:
            importlib.import_module(name)
            gc.freeze()


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 1)
    os.dup2(os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = request["argv"]
    code = 0
    try:
        exec(request["program"], {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
