"""An agent's ranks: none outlives a start that failed, and a stop reaches the agent whatever starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from trainer.builtin.ranks import Ranks
from trainer.contract import ExitCode
from trainer.place import Paths
from trainer.supervisor.place import Place

PLACE = Place("camp", 1, "node-0", "127.0.0.1", 0, 1, 2, "pod-0:29500")
STOPPED = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from trainer.builtin.agent import TrainerJob
from trainer.supervisor.life import stop_on_signals
from trainer.supervisor.place import Place
from trainer.supervisor.running import Running
job = TrainerJob.__new__(TrainerJob)
Running.__init__(job, {}, Place("camp", 1, "node-0", "127.0.0.1", 0, 1, 2, "pod-0:29500"), Path(sys.argv[1]))
stop_on_signals(job)
if sys.argv[2] != "none":
    multiprocessing.get_context(sys.argv[2]).Process(target=time.sleep, args=(60,), daemon=True).start()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


def _sleep(paths: Paths) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as a rank does first
    time.sleep(60)


def test_a_rank_that_was_started_ends_where_the_next_one_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    ranks = Ranks(PLACE, None, tmp_path, _sleep, paths, "fork")  # type: ignore[arg-type]
    started: list[BaseProcess] = []
    start = ranks._start

    def fail_at_the_second(local: int, log: Path) -> Any:
        if local:
            raise OSError("no process is left")
        started.append(start(local, log))
        return started[0]

    monkeypatch.setattr(ranks, "_start", fail_at_the_second)
    with pytest.raises(OSError, match="no process is left"):
        ranks.run(0, threading.Event())
    assert [process.exitcode for process in started] == [-signal.SIGTERM]


@pytest.mark.parametrize("start_method", ["none", "fork", "spawn"])
def test_a_stop_is_heard_whatever_threads_the_agents_libraries_have(start_method: str, tmp_path: Path) -> None:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2", "BIVOUAC_TERMINATION_LOG": str(tmp_path / "last words")}
    command = [sys.executable, "-c", STOPPED, str(tmp_path), start_method]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == ExitCode.INTERRUPTED, process.stderr[-1000:]
    assert "asked to stop" in (tmp_path / "last words").read_text()
