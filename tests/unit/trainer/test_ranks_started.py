"""An agent's ranks: none outlives a start that failed, and a stop reaches the agent whatever starts them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests import waiting
from trainer.builtin.heartbeat import Heartbeat, forget_beats
from trainer.builtin.ranks import Ranks, RankWork, Spares
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


def _import_nothing() -> None:
    pass


def _leave_word(paths: Paths) -> None:
    rank = int(os.environ["RANK"])
    assert not multiprocessing.current_process().daemon, "a rank may have processes of its own"
    word = f"{os.getpid()} {os.environ['WORD']}"
    (paths.run / f"word-{rank}-{os.environ['TURN']}").write_text(word)
    Heartbeat(paths.run, rank).beat(step=1, step_seconds=0.1)
    print("on its log")
    while not (paths.run / f"end-{os.environ['TURN']}").exists():
        time.sleep(0.01)


def test_a_spawned_rank_is_started_again_in_a_process_that_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, started = Paths(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path), list[list[int]]()
    ranks = Ranks(PLACE, None, tmp_path, _leave_word, paths, "spawn", 1, _import_nothing)  # type: ignore[arg-type]
    monkeypatch.setattr(ranks, "_wait_for_others", lambda generation: None)

    def end(generation: int) -> None:
        waiting.until(lambda: len(words(tmp_path, generation)) == 2, "words of both ranks")
        if not generation:
            waiting.until(lambda: len(ranks._spares._waiting) == 2, "a spare for each rank")
            started.append([process.pid or 0 for process, _ in ranks._spares._waiting])
        (tmp_path / f"end-{generation}").touch()

    def run(generation: int) -> dict[int, int]:
        """Ranks and spares end with the thread that starts them: as in the agent, it is the main one."""
        monkeypatch.setenv("TURN", str(generation))
        monkeypatch.setenv("WORD", f"word {generation}")
        threading.Thread(target=end, args=(generation,), daemon=True).start()
        return ranks.run(generation, threading.Event())

    assert run(0) == {0: 0, 1: 0} and not set(words(tmp_path, 0)) & set(started[0])
    forget_beats(tmp_path)
    assert run(1) == {0: 0, 1: 0}
    assert words(tmp_path, 1) == dict.fromkeys(started[0], "word 1"), "with the environment of now"
    assert "on its log" in (tmp_path / "rank-0-generation-1.log").read_text()
    assert ranks._spares._waiting == [], "no restart is left to wait for"


def words(folder: Path, generation: int) -> dict[int, str]:
    texts = (path.read_text().split(maxsplit=1) for path in sorted(folder.glob(f"word-*-{generation}")))
    return {int(text[0]): text[1] for text in texts if text}


def test_a_spare_ends_with_its_agent_and_a_dead_one_is_not_taken(tmp_path: Path) -> None:
    paths = Paths(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    spares = Spares(multiprocessing.get_context("spawn"), _import_nothing)
    spares.fill(2)
    dead, idle = (process for process, _ in spares._waiting)
    dead.kill()
    dead.join()
    spares._waiting.pop()[1].close()
    idle.join()
    assert idle.exitcode == 0
    assert spares.take(RankWork({}, tmp_path / "log", _sleep, paths)) is None


def test_ranks_train_on_where_no_spare_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spares = Spares(multiprocessing.get_context("spawn"), _import_nothing)

    def refuse(process: BaseProcess) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(BaseProcess, "start", refuse)
    spares.fill(2)
    assert spares._waiting == [] and "Resource temporarily unavailable" in capsys.readouterr().out


def test_a_rank_that_was_started_ends_where_the_next_one_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    ranks = Ranks(PLACE, None, tmp_path, _sleep, paths, "fork", 0, _import_nothing)  # type: ignore[arg-type]
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
    errors = tmp_path / "errors"
    with errors.open("w") as file:  # a file, since the sleeping process outlives the agent and would hold a pipe open
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        assert process.wait() == ExitCode.INTERRUPTED, errors.read_text()[-1000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "asked to stop" in (tmp_path / "last words").read_text()
