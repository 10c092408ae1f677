"""After which ends ranks start again in their pods, and what makes a node suspected."""

from __future__ import annotations

import signal

import pytest

from tests.root import ROOT
from trainer.builtin.agent import TrainerJob
from trainer.contract import ExitCode
from trainer.health.looking import CannotLook, Look, Output
from trainer.supervisor.ends import End, rank_end
from trainer.supervisor.in_place.generations import is_own, refusal

SAMPLES = ROOT / "tests/samples/nvidia_smi"


def ended(reason: str, code: int = ExitCode.INTERNAL, detail: str = "", number: int | None = None) -> End:
    return End(code, detail, reason, signal=number)


def suspicion(has_gpus: bool, look: Look) -> str:
    job = TrainerJob.__new__(TrainerJob)
    job._has_gpus, job._look = has_gpus, look
    return job.suspicion()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_process_that_died_is_started_again(number: int) -> None:
    assert refusal(ended("signal", number=number)) == "" and is_own(ended("signal", number=number))


def test_a_lost_peer_goes_along_and_is_no_death_of_its_own() -> None:
    lost = ended("peer-lost", detail="a collective failed; seen: Connection closed by peer")
    assert refusal(lost) == "" and not is_own(lost)


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGILL])
def test_signals_that_hardware_sends_end_the_pod(number: int) -> None:
    assert signal.Signals(number).name in refusal(ended("signal", number=number))


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("config", ExitCode.USER),
        ("data", ExitCode.DATA),
        ("numeric", ExitCode.NUMERIC),
        ("storage", ExitCode.STORAGE),
        ("sick", ExitCode.SICK),
        ("interrupted", ExitCode.INTERRUPTED),
        ("fenced", ExitCode.INTERNAL),
        ("diverged", ExitCode.INTERNAL),
        ("rolled-back", ExitCode.INTERNAL),
        ("a reason of a later version", ExitCode.INTERNAL),
    ],
)
def test_what_a_retry_repeats_or_the_next_attempt_alone_can_mend_ends_the_pod(reason: str, code: int) -> None:
    assert reason in refusal(ended(reason, code))


def test_an_error_behind_which_a_gpu_may_be_broken_ends_the_pod() -> None:
    assert refusal(ended("gpu", detail="CUDA error: no such device")) == (
        "the error may come from the GPU: CUDA error: no such device")  # fmt: skip


def test_what_a_limit_refused_is_started_again_in_whatever_words_it_is_told() -> None:
    assert not any(refusal(ended(reason, detail="CUDA error: x")) for reason in ("memory", "open-files", "processes"))


def test_an_error_of_the_code_alone_is_started_again() -> None:
    assert refusal(ended("internal", detail="unexpected error; seen: KeyError: 'x'")) == ""


def smi(text: str) -> Look:
    return lambda *command, timeout_s=30.0: Output(0, text, "")


SOUND = (SAMPLES / "rtx-pro-6000-blackwell.xml").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SOUND, ""),
        (SOUND.replace("<gpu_recovery_action>None", "<gpu_recovery_action>Reset"), "recovery: GPU 0"),
        (SOUND.replace("<attached_gpus>1", "<attached_gpus>2"), "1 of 2 GPUs answer"),
        (SOUND.replace("<dram_uncorrectable>N/A", "<dram_uncorrectable>3", 1), "ecc: GPU 0"),
        ("no XML", "cannot be looked at"),
    ],
)
def test_a_gpu_with_an_error_is_suspected_and_a_sound_one_is_not(text: str, said: str) -> None:
    told = suspicion(True, smi(text))
    assert said in told and bool(told) == bool(said)


def test_without_a_gpu_nobody_asks_for_one() -> None:
    def never(*command: str, timeout_s: float = 30.0) -> Output:
        raise AssertionError(command)

    assert suspicion(False, never) == ""


def test_a_gpu_that_does_not_answer_is_suspected() -> None:
    def silent(*command: str, timeout_s: float = 30.0) -> Output:
        raise CannotLook("nvidia-smi has not answered in 10 s")

    assert "has not answered" in suspicion(True, silent)


@pytest.mark.parametrize(
    ("code", "died", "own", "refused"),
    [
        (-signal.SIGKILL, True, True, ""),
        (-signal.SIGABRT, False, False, ""),
        (1, False, False, ""),
        (-signal.SIGBUS, False, False, "SIGBUS may come from the hardware"),
        (ExitCode.DATA, False, True, "the reason is data"),
    ],
)
def test_a_rank_of_a_job_is_read_by_its_code(code: int, died: bool, own: bool, refused: str) -> None:
    end = rank_end(code, 3, died)
    assert (is_own(end), refusal(end), end.rank) == (own, refused, 3)
