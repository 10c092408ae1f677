"""From a pod's start to its end: in which order, what is left behind, and what it says where nothing ever began."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import until
from trainer.contract.exits import ExitCode
from trainer.supervisor import __main__ as entry
from trainer.supervisor import ends, life


class Job:
    """What `live` calls of a job, in the order of the calls."""

    def __init__(self, run: Path, calls: list[str], fails: str = "") -> None:
        self.run_folder, self.calls, self.fails = run, calls, fails
        self.events: list[dict[str, Any]] = []
        self.place = SimpleNamespace(pod_ip="127.0.0.1", node_rank=1, node_count=2)
        self.full_status = self.answer_any = self.stream = self.take = None
        self.readings = SimpleNamespace(open=lambda: None)
        (run / "scratch").write_text("of this life")

    def call(self, name: str) -> None:
        self.calls.append(name)
        if self.fails == name:
            raise ValueError(f"{name} fails")

    def emit(self, event: str, **fields: object) -> None:
        self.events.append({"event": event, **fields})

    def run(self) -> ends.End:
        self.call("run")
        return ends.End(ends.DONE, "well")

    def end_of(self, error: Exception) -> ends.End:
        return ends.End(ends.USER, str(error))

    def leave_nothing(self) -> None:
        self.call("leave nothing")

    def message(self, end: ends.End) -> str:
        return json.dumps({"code": end.code, "detail": end.detail, "signal": None, "ranks": [1, 2], "step": 0})

    def keep_logs(self) -> None:
        assert self.run_folder.exists()
        self.call("keep logs")


class Pod:
    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.calls, self.messages, self.jobs = list[str](), list[dict[str, Any]](), list[Job]()
        self.root = root
        patch.setattr(life.tempfile, "mkdtemp", self._make)
        patch.setattr(life.family, "adopt", lambda: self.calls.append("adopt"))
        patch.setattr(life, "stop_on_signals", lambda job: self.calls.append("signals"))
        patch.setattr(life, "serve", lambda *_, **__: self.calls.append("serve"))
        patch.setattr(life, "write_termination", self._write)
        self.refused = 0

    @property
    def run(self) -> Path:
        return self.root / "run"

    def _make(self, prefix: str) -> str:
        if self.refused:
            raise OSError(self.refused, os.strerror(self.refused))
        self.run.mkdir()
        return str(self.run)

    def _write(self, text: str) -> None:
        self.calls.append("termination")
        self.messages.append(json.loads(text))

    def live(self, fails: str = "") -> int:
        def make(run: Path) -> Any:
            self.jobs.append(Job(run, self.calls, fails))
            return self.jobs[0]

        return life.live(make, lambda error: ends.End(ends.INTERNAL, f"no job: {error}"))


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(tmp_path, monkeypatch)


def test_a_life_serves_runs_leaves_nothing_tells_its_end_and_keeps_its_logs_last(pod: Pod) -> None:
    assert pod.live() == ends.End(ends.DONE, "").code == 0
    assert pod.calls == ["adopt", "signals", "serve", "run", "leave nothing", "termination", "keep logs"]
    assert not pod.run.exists()
    begun, ended = pod.jobs[0].events
    assert begun == {"event": "agent", "phase": "starting", "node_rank": 1, "nodes": 2}
    assert ended == {"event": "agent_ended", "code": 0, "detail": "well", "step": 0}, (
        "without what is unknown, and ranks"
    )
    assert pod.messages[0]["ranks"] == [1, 2]


def test_an_error_of_the_supervisors_own_is_the_jobs_end_and_nothing_is_left_behind(pod: Pod) -> None:
    assert pod.live(fails="run") == ends.End(ends.USER, "").code != 0
    assert pod.calls[-3:] == ["leave nothing", "termination", "keep logs"] and not pod.run.exists()
    assert pod.messages[0]["detail"] == "run fails"


@pytest.mark.parametrize(("attempt", "number"), [("3", 3), ("", 0), ("x", 0)])
def test_a_pod_that_makes_no_job_says_so_with_its_attempt_and_node(
    attempt: str, number: int, pod: Pod, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BIVOUAC_ATTEMPT", attempt), monkeypatch.setenv("BIVOUAC_NODE_NAME", "n7")

    def refuse(run: Path) -> Any:
        raise ValueError("no such launcher")

    code = life.live(refuse, lambda error: ends.End(ends.USER, f"no job: {error}"))
    assert code == int(ExitCode.USER) and not pod.run.exists()
    (message,) = pod.messages
    assert (message["attempt"], message["node"], message["exit_code"]) == (number, "n7", code)
    assert (message["step"], message["committed_step"]) == (0, -1)
    assert "no job: no such launcher" in message["detail"] and "no such launcher" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        (errno.ENOSPC, ExitCode.STORAGE, "storage"),
        (errno.ENOMEM, ExitCode.INTERNAL, "memory"),
        (errno.EMFILE, ExitCode.INTERNAL, "open-files"),
    ],
)
def test_a_disk_that_takes_no_folder_is_the_storages_and_a_limit_is_not(
    number: int, code: ExitCode, reason: str, pod: Pod
) -> None:
    pod.refused = number
    assert pod.live() == int(code) and not pod.jobs
    assert "no folder for the run" in pod.messages[0]["detail"] and pod.messages[0]["reason"] == reason


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (FileNotFoundError(errno.ENOENT, "missing", "/config/workload.json"), ExitCode.USER, ""),
        (PermissionError(errno.EACCES, "no right", "/config/workload.json"), ExitCode.USER, ""),
        (ValueError("no JSON"), ExitCode.USER, ""),
        (OSError(errno.EIO, "Input/output error", "/config/workload.json"), ExitCode.STORAGE, ""),
        (OSError(errno.ENOMEM, "refused"), ExitCode.INTERNAL, "memory"),
        (OSError(errno.EMFILE, "refused", "/config/workload.json"), ExitCode.INTERNAL, "open-files"),
        (KeyError("ours"), ExitCode.INTERNAL, ""),
    ],
)
def test_only_what_the_pods_files_say_is_the_users_where_no_job_can_be_made(
    error: Exception, code: ExitCode, reason: str
) -> None:
    end = entry._end_of(error)
    assert (end.code, end.reason) == (code, reason) and str(error) in end.detail


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Give the process its signals back."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers, mask = (
        {number: signal.getsignal(number) for number in numbers},
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    )
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def has_heard(stops: list[tuple[int, str]], count: int) -> bool:
    return len(stops) == count


@pytest.mark.usefixtures("own_signals")
def test_each_signal_asks_the_job_to_stop_in_a_thread_also_after_a_failure() -> None:
    stops, errors = list[tuple[int, str]](), list[str]()

    def stop(number: int) -> None:
        stops.append((number, threading.current_thread().name))
        if len(stops) == 1:
            raise OSError("a tier that hangs")

    life.stop_on_signals(SimpleNamespace(stop=stop, print_error=lambda error: errors.append(str(error))))  # type: ignore[arg-type]
    for count, number in enumerate((signal.SIGTERM, signal.SIGINT, signal.SIGTERM), 1):
        os.kill(os.getpid(), number)
        until(partial(has_heard, stops, count), f"signal {count} was heard")
    assert stops == [(signal.SIGTERM, "signals"), (signal.SIGINT, "signals"), (signal.SIGTERM, "signals")]
    assert errors == ["a tier that hangs"], "printed by the job, which hides its secrets"


@pytest.mark.usefixtures("own_signals")
def test_signals_that_come_while_the_job_stops_are_heard_one_by_one() -> None:
    stops, may_end = list[tuple[int, str]](), threading.Event()

    def stop(number: int) -> None:
        stops.append((number, ""))
        may_end.wait()

    life.stop_on_signals(SimpleNamespace(stop=stop))  # type: ignore[arg-type]
    os.kill(os.getpid(), signal.SIGTERM)
    until(partial(has_heard, stops, 1), "the first signal was heard")
    os.kill(os.getpid(), signal.SIGINT), os.kill(os.getpid(), signal.SIGTERM)
    may_end.set()
    until(partial(has_heard, stops, 3), "the others were heard")
    assert {number for number, _ in stops[1:]} == {signal.SIGINT, signal.SIGTERM}


@pytest.mark.usefixtures("own_signals")
def test_a_forked_rank_passes_its_own_signal_on_to_nobody() -> None:
    stops: list[tuple[int, str]] = []
    life.stop_on_signals(SimpleNamespace(stop=lambda number: stops.append((number, ""))))  # type: ignore[arg-type]
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    os.waitpid(child, 0)
    os.kill(os.getpid(), signal.SIGINT)
    until(partial(has_heard, stops, 1), "the signal was heard")
    assert stops == [(signal.SIGINT, "")], "the child's would have come first"


def test_a_scratch_folder_that_is_gone_already_is_no_other_end(pod: Pod) -> None:
    def refuse(run: Path) -> Any:
        run.rmdir()
        raise ValueError("no such launcher")

    assert life.live(refuse, lambda error: ends.End(ends.USER, f"no job: {error}")) == int(ExitCode.USER)
    assert "no such launcher" in pod.messages[0]["detail"]


def test_a_scratch_folder_that_is_gone_at_the_end_is_no_other_end(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "keep_logs", lambda job: shutil.rmtree(job.run_folder))
    assert pod.live() == int(ExitCode.DONE)
