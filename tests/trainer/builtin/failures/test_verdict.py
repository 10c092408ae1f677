"""A node's end from what its ranks left: who is blamed, and who only waited."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import waiting
from tests.root import ROOT
from trainer.builtin.failures import first_end
from trainer.builtin.failures.verdict import cause_of
from trainer.builtin.heartbeat import Heartbeat, Outcome
from trainer.builtin.serving import Node
from trainer.contract import ExitCode, Phase
from trainer.contract.culprit import Exchanges, RankSeen, Sign
from trainer.contract.exits import TERMINATION_LIMIT_BYTES
from trainer.contract.job import Termination
from trainer.errors import classify
from trainer.supervisor.ends import End
from trainer.supervisor.in_place.generations import refusal
from trainer.supervisor.place import Place

SAMPLES = ROOT / "tests/samples/nccl_watchdog"
TIMEOUT, OWN_GPU = (SAMPLES / "timeout.txt").read_text(), (SAMPLES / "own-gpu.txt").read_text()
ABORTED, TERMINATED = -signal.SIGABRT, -signal.SIGTERM


def ranks_at(run: Path, *steps: int) -> list[Heartbeat]:
    beats = [Heartbeat(run, rank) for rank in range(len(steps))]
    for beat, step in zip(beats, steps, strict=True):
        beat.beat(phase=Phase.TRAINING, step=step)
    return beats


def noted(run: Path, codes: dict[int, int], states: dict[int, str]) -> None:
    (run / "first-end.json").write_text(first_end.FirstEnd(at=1e12, codes=codes, states=states).model_dump_json())


def test_a_watchdogs_abort_is_the_loss_of_a_peer_and_not_a_crash_of_the_healthy(tmp_path: Path) -> None:
    ranks_at(tmp_path, 7, 7)
    (tmp_path / "rank-0.log").write_text(TIMEOUT)
    cause = cause_of(tmp_path, tmp_path, {0: ABORTED, 1: TERMINATED})
    assert (cause.code, cause.reason, cause.rank, cause.signal) == (70, "peer-lost", 0, signal.SIGABRT)
    assert "Watchdog caught collective operation timeout" in cause.detail
    assert cause.ranks[0].end == Sign.ABORTED


def test_a_watchdogs_abort_for_the_ranks_own_gpu_stays_a_crash_of_that_rank(tmp_path: Path) -> None:
    ranks_at(tmp_path, 7)
    (tmp_path / "rank-0.log").write_text(OWN_GPU)
    cause = cause_of(tmp_path, tmp_path, {0: ABORTED})
    assert (cause.reason, cause.rank) == ("gpu", 0) and "CUDA error: an illegal memory access" in cause.detail
    assert "GPU" in refusal(cause)


def test_one_ranks_own_failure_outweighs_the_timeouts_of_those_that_waited_for_it(tmp_path: Path) -> None:
    ranks_at(tmp_path, 7, 7)
    (tmp_path / "rank-0.log").write_text(TIMEOUT)
    (tmp_path / "rank-1.log").write_text(f"{TIMEOUT}{OWN_GPU}")
    cause = cause_of(tmp_path, tmp_path, {0: ABORTED, 1: ABORTED})
    assert (cause.reason, cause.rank) == ("gpu", 1)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGKILL, signal.SIGABRT])
def test_other_deaths_of_a_signal_are_crashes_of_that_rank(number: signal.Signals, tmp_path: Path) -> None:
    ranks_at(tmp_path, 7, 7)
    (tmp_path / "rank-1.log").write_text("nothing of a watchdog\n")
    cause = cause_of(tmp_path, tmp_path, {0: TERMINATED, 1: -number})
    assert (cause.reason, cause.rank, cause.signal) == ("signal", 1, number)


def test_a_frozen_rank_that_the_agent_killed_is_called_stopped(tmp_path: Path) -> None:
    beats = ranks_at(tmp_path, 7, 6)
    beats[0].beat(outcome=Outcome(exit_code=70, reason="peer-lost", detail="a collective failed"))
    noted(tmp_path, {0: 70}, {1: "T"})
    cause = cause_of(tmp_path, tmp_path, {0: 70, 1: -signal.SIGKILL})
    assert (cause.code, cause.reason, cause.rank, cause.signal) == (70, "stopped", 1, None)
    assert "is stopped by a signal after step 6" in cause.detail


def test_a_rank_that_the_agent_killed_since_it_did_not_end_died_of_nothing_by_itself(tmp_path: Path) -> None:
    beats = ranks_at(tmp_path, 7, 7)
    beats[0].beat(outcome=Outcome(exit_code=70, reason="peer-lost", detail="a collective failed"))
    noted(tmp_path, {0: 70}, {1: "D"})
    cause = cause_of(tmp_path, tmp_path, {0: 70, 1: -signal.SIGKILL})
    assert (cause.reason, cause.rank) == ("peer-lost", 0) and cause.ranks[1].end == Sign.RUNS


def test_the_first_look_finds_a_frozen_process_and_ends_it(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]
    frozen, failed = subprocess.Popen(program), subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    waiting.until(lambda: first_end.state_of(frozen.pid) == "T", "a stopped process")
    failed.wait()

    class Of:
        def __init__(self, process: subprocess.Popen[bytes]) -> None:
            self.process, self.pid = process, process.pid

        @property
        def exitcode(self) -> int | None:
            return self.process.poll()

    first_end.note(tmp_path, 4, [Of(failed), Of(frozen)])
    found = first_end.read(tmp_path)
    assert found is not None and (found.codes, found.states) == ({4: 3}, {5: "T"})
    assert frozen.wait() == -signal.SIGKILL
    first_end.forget(tmp_path)
    assert first_end.read(tmp_path) is None


def test_a_termination_message_fits_the_kubelets_limit_with_eight_ranks_and_long_words(tmp_path: Path) -> None:
    groups = {str(name): Exchanges(123456, 123456, 123455, 30.123, 30.0) for name in range(6)}
    ranks = tuple(
        RankSeen(
            rank=1016 + n, step=123456, phase="training", age_s=30.1, end="aborted", detail="ü" * 200, groups=groups
        )
        for n in range(8)
    )
    node = Node(Place("c", 12, "ip-10-0-1-2.ec2.internal", "127.0.0.1", 0, 1, 8, "x:1"), 10, tmp_path, tmp_path)
    ranks_at(tmp_path, 123456)[0].beat(committed_step=123400)
    end = End(70, '"ü\n' * 500, "peer-lost", ranks=ranks)
    for one in (end, end._replace(detail=TIMEOUT[:500])):
        message = node.message(one)
        assert len(message.encode()) <= TERMINATION_LIMIT_BYTES
        assert Termination.model_validate_json(message).reason == "peer-lost"
    kept = Termination.model_validate_json(message).ranks
    assert [one.rank for one in kept] == [rank.rank for rank in ranks] and kept[0].groups == groups


def test_a_message_of_an_older_trainer_is_read() -> None:
    old = {"exit_code": 70, "reason": "peer-lost", "attempt": 1, "node": "n", "step": 3, "committed_step": 2}
    assert Termination.model_validate_json(json.dumps(old)).ranks == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NCCL error in: ProcessGroupNCCL.cpp:4, ncclRemoteError: a network error or a remote process", "peer-lost"),
        ("NCCL error in: NCCLUtils.cpp:1, unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "gpu"),
        ("CUDA error: uncorrectable ECC error encountered", "gpu"),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "gpu"),
    ],
)  # fmt: skip
def test_an_error_of_nccl_about_this_ranks_own_gpu_is_no_lost_peer(text: str, reason: str) -> None:
    assert classify(RuntimeError(text)).reason == reason


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_what_the_kernel_refuses_a_process_is_no_disks_fault_and_restarts_in_place() -> None:
    errors: dict[Exception, str] = {
        MemoryError(): "memory",
        OSError(errno.ENOMEM, "Cannot allocate memory"): "memory",
        OSError(errno.EMFILE, "Too many open files", "/data/a"): "open-files",
        OSError(errno.ENFILE, "Too many open files in system"): "open-files",
        OSError(errno.EAGAIN, "Resource temporarily unavailable"): "processes",
        OSError("pyarrow: [errno 24] Too many open files"): "open-files",
        raised_from(RuntimeError("a worker failed"), OSError(errno.EMFILE, "Too many open files")): "open-files",
    }
    for error, reason in errors.items():
        failure = classify(error)
        assert (failure.reason, failure.exit_code) == (reason, ExitCode.INTERNAL) and failure.cure
        assert not refusal(End(int(failure.exit_code), str(failure), failure.reason))
    assert classify(OSError(errno.EIO, "Input/output error")).reason == "storage"
    assert classify(OSError(errno.EAGAIN, "Resource temporarily unavailable", "/a/lock")).reason == "storage"
    assert classify(ValueError("no such file: 'out of memory.txt'")).reason == "internal"
    own_cause = RuntimeError("a worker failed")
    assert classify(raised_from(own_cause, own_cause)).reason == "internal", "`raise error from error`"
