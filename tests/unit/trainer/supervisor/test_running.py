"""What every pod's supervisor does with a job: passes its lines on, asks it to stop, and says how it ended."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.trainer.supervised import MARK
from trainer.contract import ExitCode
from trainer.supervisor import running
from trainer.supervisor.ends import DONE, INTERNAL, STORAGE, End
from trainer.supervisor.place import Place
from trainer.supervisor.running import Allowance, Running

PLACE = Place("tiny", 3, "n0", "127.0.0.1", 0, 1, 1, "127.0.0.1:29500")
LINE = "x" * 1023
"""With its end a KiB."""


class Pod(Running):
    def newest_steps(self) -> tuple[int, int]:
        return 12, 10


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(running, "time", clock)
    return clock


def pod(run: Path, **config: Any) -> Pod:
    return Pod(config, PLACE, run)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[1:]) for line in text.split("\n") if line.startswith(MARK)]


def test_an_allowance_comes_back_with_the_time_and_once_used_up_with_a_quarter(clock: Clock) -> None:
    allowance = Allowance(per_second=1.0, capacity=100.0)
    assert [allowance.take(60.0), allowance.take(40.0), allowance.take(1.0)] == [True, True, False]
    clock.now += 24.0
    assert not allowance.take(1.0), "a quarter is not back"
    clock.now += 1.0
    assert allowance.take(1.0) and allowance.take(24.0) and not allowance.take(1.0)
    clock.now += 1e6
    assert allowance.take(100.0) and not allowance.take(0.5), "never more than the capacity"


def test_lines_beyond_the_allowance_are_counted_and_told_before_the_next_line(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    job = pod(tmp_path)
    for _ in range((8 << 10) + 3):
        job.pass_on(LINE)
    assert capsys.readouterr().out.count("\n") == 8 << 10
    clock.now += 29.9
    job.pass_on("too early: a quarter is back after half a minute")
    clock.now += 0.2
    job.pass_on("heard again")
    told, last, _ = capsys.readouterr().out.split("\n")
    (dropped,) = events(told)
    assert (dropped["event"], dropped["lines"], last) == ("lines_dropped", 4, "heard again")
    assert dropped["bytes"] == (3 << 10) + 49
    job.pass_on("and again")
    job.tell_dropped()
    assert capsys.readouterr().out == "and again\n", "nothing more was dropped"


def test_our_own_lines_have_a_mark_that_no_line_of_the_job_has(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter22")
    job = pod(tmp_path, secrets=["TOKEN", "ABSENT"])
    job.pass_on(f'{MARK}{{"event": "committed"}}')
    job.emit("restored", step=3, why="with hunter22")
    assert events(capsys.readouterr().out) == [
        {"event": "restored", "time": 1000.0, "step": 3, "why": "with [secret]", "node": "n0", "attempt": 3}
    ]


def test_an_error_of_the_system_is_the_storages_and_another_is_ours_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter22")
    job = pod(tmp_path, secrets=["TOKEN"])
    end = job.end_of(OSError(5, "Input/output error"))
    assert end.code == STORAGE and "Input/output error" in end.detail and capsys.readouterr().err == ""
    for number, reason in ((12, "memory"), (24, "open-files"), (11, "processes")):
        assert job.end_of(OSError(number, "refused"))[::2] == End(INTERNAL, "", reason)[::2]
    assert job.end_of(RuntimeError("can't start new thread")).reason == "processes"
    assert job.end_of(KeyError("lost")) == End(INTERNAL, "KeyError('lost')")
    assert "KeyError: 'lost'" in capsys.readouterr().err
    job.end_of(KeyError("hunter22"))
    assert "hunter22" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("returncode", "end", "number"),
    [
        (None, End(DONE), None),
        (0, End(DONE), None),
        (1, End(INTERNAL), None),
        (-9, End(INTERNAL), 9),
        (-9, End(INTERNAL, signal=11), 11),
    ],
)
def test_a_termination_message_has_steps_place_and_the_signal(
    returncode: int | None, end: End, number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter22")
    job = pod(tmp_path, secrets=["TOKEN"])
    job.process = None if returncode is None else SimpleNamespace(returncode=returncode)  # type: ignore[assignment]
    message = json.loads(job.message(end._replace(detail="said hunter22")))
    assert (message["step"], message["committed_step"], message["attempt"], message["node"]) == (12, 10, 3, "n0")
    assert message["signal"] == number and message["detail"] == "said [secret]"


def test_a_file_is_waited_for_until_it_comes_or_its_time_is_over_or_the_job_is_to_stop(
    tmp_path: Path, clock: Clock
) -> None:
    job = pod(tmp_path)
    with pytest.raises(TimeoutError, match="has not appeared within 10 s"):
        job.wait_for(tmp_path / "code", 10.0)
    assert clock.now == pytest.approx(1010.0, abs=0.5)
    (tmp_path / "code").touch()
    job.wait_for(tmp_path / "code", 0.0)
    job.stopping = "SIGTERM"
    job.wait_for(tmp_path / "other", 10.0)
    assert clock.now == pytest.approx(1010.0, abs=0.5)


class Timers:
    """Timers that are kept instead of started."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def __call__(self, seconds: float, action: Callable[..., None], arguments: tuple[Any, ...] = ()) -> Any:
        self.set.append((seconds, action, arguments))
        return SimpleNamespace(daemon=False, start=lambda: None)


@pytest.mark.parametrize(
    ("config", "asks", "seconds"),
    [({}, False, [0.0, 50.0]), ({"grace_s": 20}, False, [0.0, 20.0]), ({"grace_s": 20}, True, [10.0, 20.0])],
)
def test_a_job_gets_sigterm_at_once_or_after_half_its_grace_and_then_is_killed(
    config: dict[str, Any], asks: bool, seconds: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, timers = pod(tmp_path, **config), Timers()
    monkeypatch.setattr(running.threading, "Timer", timers)
    if asks:
        (tmp_path / "asks").touch()
    job.stop(signal.SIGTERM)
    job.stop(signal.SIGINT)
    assert job.stopping == "SIGTERM" and (tmp_path / "stop").exists()
    assert [timer[0] for timer in timers.set] == seconds, "the first signal counts"
    assert timers.set[0][2] == (signal.SIGTERM,)


def test_what_has_not_ended_after_its_grace_is_killed_and_what_has_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[int | None] = []
    monkeypatch.setattr(running.family, "end_all", lambda launcher: kills.append(launcher) or [])
    job = pod(tmp_path)
    job._kill()
    assert job.killed and kills == [None]
    over = pod(tmp_path)
    over._over.set()
    over._kill()
    assert not over.killed and kills == [None]


class Reads(Pod):
    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            self.pass_on(line.decode().rstrip("\n"))


def test_a_command_that_starts_is_followed_and_one_that_does_not_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.family, "end_all", lambda launcher: [])
    job = Reads({"folder": str(tmp_path)}, PLACE, tmp_path)
    said = "import os, signal; print(os.getcwd(), os.getsid(0) == os.getpid(), os.environ['WORD'], "
    said += "signal.pthread_sigmask(signal.SIG_BLOCK, ())); raise SystemExit(7)"
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        assert job._start([sys.executable, "-c", said], {"WORD": "here"}) == ""
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    assert job._await_exit() == 7 and job._over.wait()
    assert capsys.readouterr().out == f"{tmp_path} True here set()\n"
    why = Reads({}, PLACE, tmp_path)._start(["/no/such/program"], {})
    assert why.startswith("the command does not start: ") and "No such file" in why
    assert [event["event"] for event in events(capsys.readouterr().out)] == ["not_started"]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_limit_that_refuses_a_start_says_nothing_of_the_command(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **how: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(running.subprocess, "Popen", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        Reads({}, PLACE, tmp_path)._start(["true"], {})


def test_a_stop_that_comes_while_the_command_is_started_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.family, "end_all", lambda launcher: [])
    job = Reads({}, PLACE, tmp_path)
    job.stopping = "SIGTERM"
    assert job._start(["sleep", "1000"], {}) == ""
    assert job._await_exit() == -signal.SIGTERM


def test_what_is_left_behind_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = pod(tmp_path)
    job.process = SimpleNamespace(pid=7)  # type: ignore[assignment]
    monkeypatch.setattr(running.family, "end_all", lambda launcher: [8] if launcher == 7 else [])
    job.leave_nothing()
    (event,) = events(capsys.readouterr().out)
    assert (event["event"], event["processes"]) == ("left_behind", [8])

    def refuse(launcher: int) -> list[int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(running.family, "end_all", refuse)
    job.leave_nothing()
    (event,) = events(capsys.readouterr().out)
    assert event["event"] == "left_behind" and "cannot be seen" in event["why"], "not seen is not ended"


def test_packages_for_another_python_are_refused_before_anything_is_unpacked(tmp_path: Path) -> None:
    job = pod(tmp_path, requirements_python="2.7", source=str(tmp_path / "absent"))
    assert not job._unpack_all() and job.unfit.code == ExitCode.USER and "Python 2.7" in job.unfit.detail
    here = ".".join(map(str, sys.version_info[:2]))
    assert pod(tmp_path, requirements_python=here)._unpack_all() and pod(tmp_path)._unpack_all()


def test_code_of_another_digest_is_refused_and_what_a_stop_interrupts_is_no_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code").mkdir()
    subprocess.run(["tar", "-cf", tmp_path / "code.tar", "-C", tmp_path, "code"], check=True)
    job = pod(tmp_path, source=str(tmp_path / "code.tar"), source_digest="other", folder=str(tmp_path / "work"))
    assert not job._unpack_all() and job.unfit.code == ExitCode.DATA and "has SHA-256" in job.unfit.detail
    assert [event["event"] for event in events(capsys.readouterr().out)] == ["refused_source"]
    stopped = pod(tmp_path, source=str(tmp_path / "absent"), folder=str(tmp_path))
    stopped.stopping = "SIGTERM"
    assert not stopped._unpack_all() and stopped.unfit.detail == ""
