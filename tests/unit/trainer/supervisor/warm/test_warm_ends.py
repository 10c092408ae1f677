"""How a job ends whose ranks are forked: by what its generations ended, and by which of its ranks failed first."""

from __future__ import annotations

import errno
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.contract.exits import NOTHING_SOUND, PEER_LOST, ExitCode
from trainer.supervisor.ends import DONE, INTERNAL, End
from trainer.supervisor.launcher import Warm
from trainer.supervisor.sealing.shared import NoSoundSeal
from trainer.supervisor.warm import job as warm


class FailureNotes(Warm):
    """The launcher, as far as a rank's end concerns it."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def note_failure(self, code: int) -> None:
        self.codes.append(code)


class ForkingJob(warm.WarmJob):
    """Without a process of its own: a test plays the ranks' ends."""

    def __init__(self) -> None:
        self.process = SimpleNamespace(pid=os.getpid())  # type: ignore[assignment]
        self.place = SimpleNamespace(node_name="n0", ranks_per_node=2)  # type: ignore[assignment]
        self.launcher = FailureNotes()
        self._line, self.warm_line = socket.socketpair()
        self._heard, self._over = queue.Queue[dict[str, Any]](), threading.Event()
        self._meeting, self._trouble = None, None  # type: ignore[assignment]
        self.tier, self.stopping, self._left = Path("/tier"), "", 2
        self.ended = 0

    def _end_ranks(self) -> None:
        self.ended += 1

    @property
    def failures(self) -> list[int]:
        assert isinstance(self.launcher, FailureNotes)
        return self.launcher.codes

    def hears(self, *ends: tuple[int, int]) -> None:
        """Let ranks end: each with its number and code."""
        for number, (rank, code) in enumerate(ends, 1):
            self._heard.put({"rank": rank, "code": code, "left": 2 - number})


@pytest.fixture
def job() -> ForkingJob:
    return ForkingJob()


def ends_by(action: Callable[[], End], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "Generations", lambda *_: SimpleNamespace(run=action))


def raise_error(error: Exception) -> End:
    raise error


@pytest.mark.parametrize(
    ("action", "code", "reason"),
    [
        (lambda: End(INTERNAL, "a node is gone", PEER_LOST), ExitCode.INTERNAL, PEER_LOST),
        (lambda: raise_error(NoSoundSeal("none is sound")), ExitCode.STORAGE, NOTHING_SOUND),
        (lambda: raise_error(OSError(errno.ENOSPC, "full")), ExitCode.STORAGE, ""),
        (lambda: raise_error(OSError(errno.ENOMEM, "refused")), ExitCode.INTERNAL, "memory"),
        (lambda: raise_error(OSError(errno.EMFILE, "refused")), ExitCode.INTERNAL, "open-files"),
    ],
)
def test_what_no_restart_mends_is_the_jobs_end(
    action: Callable[[], End], code: int, reason: str, job: ForkingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_by(action, monkeypatch)
    job._follow()
    assert job._trouble is not None and job._trouble.code == code and job.ended == 1
    assert job._trouble.reason == reason
    assert job._end(0) is job._trouble
    assert job.warm_line.recv(1) == b"", "the warm process is asked to end"


@pytest.mark.parametrize("action", [lambda: End(DONE), lambda: End(INTERNAL, "a rank has failed")])
def test_a_ranks_own_end_is_told_by_its_launcher(
    action: Callable[[], End], job: ForkingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_by(action, monkeypatch)
    job._follow()
    assert job._trouble is None and job.ended == 1


def test_an_error_of_the_tier_after_the_jobs_end_is_no_trouble(
    job: ForkingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_by(lambda: raise_error(OSError(errno.EIO, "gone")), monkeypatch)
    job._over.set()
    job._follow()
    assert job._trouble is None


def test_ranks_that_are_asked_to_stop_have_their_grace(job: ForkingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_by(lambda: End(INTERNAL, "a node is gone", PEER_LOST), monkeypatch)
    job.stopping = "SIGTERM"
    job._follow()
    assert job.ended == 0


def test_of_ranks_that_end_together_the_one_counts_that_a_signal_may_have_killed(job: ForkingJob) -> None:
    job.hears((1, 1), (0, -signal.SIGKILL))
    end = job._rank_end(threading.Event())
    assert job.failures == [-signal.SIGKILL] and (end.rank, end.reason) == (0, "signal")


def test_all_ranks_that_end_well_are_done(job: ForkingJob) -> None:
    job.hears((1, 0), (0, 0))
    assert job._rank_end(threading.Event()).code == DONE and job.failures == []


def test_a_death_on_another_node_ends_the_ranks_of_this_one(job: ForkingJob) -> None:
    over = threading.Event()
    over.set()
    end = job._rank_end(over)
    assert end.reason == PEER_LOST and "another node" in end.detail


def test_ranks_that_stop_are_waited_for_whatever_they_end_by(job: ForkingJob) -> None:
    job.stopping = "SIGTERM"
    job.hears((0, 1), (1, -signal.SIGTERM))
    assert job._rank_end(threading.Event()).code == DONE and job._left == 0


def test_a_start_orders_the_ranks_and_a_failure_ends_those_that_are_left(job: ForkingJob) -> None:
    job.hears((1, 65))
    end = job.start_ranks(0, threading.Event())
    assert end.code != DONE and job.ended == 1
    assert job.warm_line.recv(4096) == b'{"variables": {"TORCHELASTIC_RESTART_COUNT": "0"}, "command": []}\n'


def test_what_the_ranks_have_finished_is_sealed_before_the_next_ones_choose(job: ForkingJob) -> None:
    calls: list[str] = []

    def resume(generation: int) -> str:
        calls.append(f"choose for {generation}")
        return "/own/save-10"

    job.sealing = SimpleNamespace(look=lambda: calls.append("seal"), resume=resume)  # type: ignore[assignment]
    job._sealed_alone, job.generation, job.stopping = threading.RLock(), 2, "SIGTERM"
    job._restart()
    assert calls == ["seal", "choose for 2"]
    job.warm_line.setblocking(False)
    with pytest.raises(BlockingIOError):  # no rank is ordered of a job that is asked to stop
        job.warm_line.recv(1)
