"""Why a job failed, out of transcripts of launchers and ranks."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.trainer.supervised import Supervisors
from trainer.contract import ExitCode
from trainer.supervisor import ends, failures, launcher
from trainer.supervisor.failures import LastWords
from trainer.supervisor.place import Place

TRACE = [
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 6, in <module>',
    '    {}["size"]',
    "    ~~^^^",
]
GLOO = "RuntimeError: [/pytorch/third_party/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4541"
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:268, remote process exited"
TRAILER = """W1125 17:42:23.962000 26035 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process \
26154 closing signal SIGTERM
E1125 17:42:24.041000 26035 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 \
(pid: 26155) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-25_17:42:24
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 26154)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 26154
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-25_17:42:23
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 26155)
  error_file: <N/A>
============================================================""".splitlines()


def of(rank: int, lines: list[str]) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


def words(*lines: str) -> LastWords:
    heard = LastWords()
    for line in lines:
        heard.hear(line)
    return heard


def told(*lines: str) -> tuple[str, int | None]:
    failure = words(*lines).failure()
    assert failure is not None
    return failure.error, failure.rank


KEY = "KeyError: 'size'"


def test_a_ranks_own_error_is_told_and_not_its_launchers() -> None:
    assert told(*of(1, [*TRACE, KEY]), *of(0, [*TRACE, GLOO]), *TRAILER) == (KEY, 1)
    assert told(*TRACE, KEY, *TRAILER) == (KEY, None), "before the process group stands, lines have no rank"
    assert "line 6" in str(words(*of(1, [*TRACE, KEY]), *TRAILER)), "with the lines before it"


def test_a_lost_peer_is_told_only_where_no_rank_has_an_error_of_its_own() -> None:
    assert told(*of(0, [*TRACE, GLOO]), *of(3, [*TRACE, KEY]), "step 7", *of(2, [*TRACE, NCCL]), *TRAILER) == (KEY, 3)
    assert told(*of(2, [*TRACE, NCCL]), *of(0, [*TRACE, GLOO])) == (NCCL, 2)


def test_tracebacks_that_interleave_are_told_apart() -> None:
    pairs = zip(of(0, [*TRACE, GLOO]), of(5, [*TRACE, KEY]), strict=True)
    assert told(*[line for pair in pairs for line in pair], *TRAILER) == (KEY, 5)


def test_of_chained_errors_the_one_that_ended_the_process_is_told() -> None:
    chained = [*TRACE, KEY, "", "During handling of the above exception, another exception occurred:", "", *TRACE]
    assert told(*chained, "my.own.Trouble: no size") == ("my.own.Trouble: no size", None)
    assert told(*of(1, chained), *of(1, ["ImportError: x"])) == ("ImportError: x", 1)


def test_an_error_that_was_handled_is_not_the_reason() -> None:
    handled = [*TRACE, "ModuleNotFoundError: No module named 'flash_attn'"]
    assert told(*handled, "using another attention", *TRACE, KEY) == (KEY, None)
    later = words(*handled, *(f"step {step}" for step in range(100)), "the data is not what it was")
    assert later.failure() is None and "the data is not what it was" in str(later)


def test_nccls_last_warning_belongs_to_the_newest_error_of_its_rank() -> None:
    said = words(
        *of(1, [KEY]), "step 1", *of(2, [NCCL]), *of(1, ["ncclSystemError: x", "Last error:"]), *of(2, ["Last error:"]),
        *of(1, ["no memory left here"]), *of(2, [KEY, "Last error:"]), *of(3, ["Last error:", "nobody's"]),
    )  # fmt: skip
    assert [[failure.error for failure in burst] for burst in said._bursts] == [
        [KEY], [NCCL, "ncclSystemError: x no memory left here", KEY]
    ]  # fmt: skip


def test_what_follows_the_launchers_word_is_a_consequence() -> None:
    stopped = words("step 7", TRAILER[0], *of(0, [*TRACE, "SystemError: stopped"]), *TRAILER[1:])
    assert stopped.failure() is None and str(stopped) == "; it said last: step 7"
    assert str(words()) == "" and str(words("-----", "====", "")) == ""


def test_a_rank_ends_with_its_last_error_and_others_keep_theirs() -> None:
    chain = "The above exception was the direct cause of the following exception:"
    lines = [*of(1, [*TRACE, KEY]), *of(2, [*TRACE, "KeyError: 2", chain, *TRACE, "OSError: 2"])]
    assert told(*lines) == (KEY, 1)
    assert told(*of(1, [*TRACE, KEY, *TRACE, "OSError: 1", chain, *TRACE, "OSError: 2"])) == (KEY, 1)
    assert told(chain, *TRACE, KEY) == (KEY, None)


def test_an_error_that_another_one_follows_is_dropped_for_its_own_rank_alone() -> None:
    chain = "During handling of the above exception, another exception occurred:"
    first, second = of(1, [*TRACE, KEY]), of(2, [*TRACE, "KeyError: 2"])
    assert told(*first, *second, *of(1, [chain, *TRACE, "OSError: 1"])) == ("KeyError: 2", 2)
    assert told(*first, "step 1", *second, *of(2, [chain, *TRACE, "OSError: 2"])) == ("OSError: 2", 2)


def test_a_burst_that_is_full_hides_no_later_one() -> None:
    many = [line for rank in range(64) for line in of(rank, [*TRACE, KEY])]
    assert told(*many, "step 1", *of(3, [*TRACE, "KeyError: 3"])) == ("KeyError: 3", 3)


@pytest.mark.parametrize(
    ("blocks", "inodes", "of", "full"),
    [(255, 9, 99, True), (256, 9, 99, False), (256, 0, 99, True), (256, 0, 0, False)],
)
def test_an_end_without_room_is_the_storages(
    blocks: int, inodes: int, of: int, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []

    def statvfs(path: str) -> SimpleNamespace:
        paths.append(path)
        return SimpleNamespace(f_bavail=blocks, f_blocks=2560, f_frsize=4096, f_files=of, f_favail=inodes)

    monkeypatch.setattr(ends.os, "statvfs", statvfs)
    end = ends.failure_end(1, words("bye"), (tmp_path / "not/there",))
    assert end.code == (ends.STORAGE if full else ends.INTERNAL) and set(paths) == {str(tmp_path)}
    room = f"{tmp_path / 'not/there'} has 1.0 of 10.0 MiB free, and {inodes} inodes"
    assert (f"the job exited with 1 where no room is left: {room}; it said last: bye" == end.detail) is full
    for number, told in ((28, True), (122, True), (13, False)):
        why = ends.of_error(OSError(number, "no", "/a/file"), tmp_path / "not/there")
        assert why.startswith(f"[Errno {number}] no: '/a/file'") and why.endswith(room) is told


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(5, ends.STORAGE, ""), (28, ends.STORAGE, ""), (12, ends.INTERNAL, "memory"), (24, ends.INTERNAL, "open-files")],
)
def test_an_error_of_the_supervisors_own_is_the_storages_unless_a_limit_refused_it(
    number: int, code: int, reason: str, tmp_path: Path
) -> None:
    end = ends.error_end(OSError(number, "no"), tmp_path, "before: ")
    assert (end.code, end.reason) == (code, reason) and end.detail.startswith(f"before: [Errno {number}] no")


def test_a_place_that_cannot_be_asked_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(ends.os, "statvfs", refuse)
    assert ends.room_in(tmp_path) == "" and ends.failure_end(1, words("bye"), (tmp_path,)).code == ends.INTERNAL
    assert ends.of_error(OSError(28, "no room"), tmp_path) == (
        f"[Errno 28] no room; {tmp_path}: [Errno 5] Input/output error")  # fmt: skip


def test_the_words_of_an_end_have_rank_cure_and_lines() -> None:
    assert str(words(*of(3, [*TRACE, "my.Trouble: " + "x" * 400]))) == (
        "; it said last: my.Trouble: " + "x" * 288
        + ' (rank 3); before that: File "/workspace/train.py", line 6, in <module> | {}["size"] | ~~^^^'
    )  # fmt: skip
    assert str(words("KeyError: 1")) == "; it said last: KeyError: 1; an error of the script"
    long = words(TRACE[0], *(f"  line {number}" for number in range(9)), KEY).failure()
    assert long is not None and long.lines == tuple(f"line {number}" for number in range(4, 9))


def test_an_error_is_stale_after_fifty_other_lines() -> None:
    for others, known in ((49, True), (50, False)):
        assert (words(*TRACE, KEY, *["step"] * others).failure() is not None) is known


def test_what_is_kept_of_errors_is_bounded() -> None:
    many = words(*[line for rank in range(500) for line in of(rank, [*TRACE, KEY])])
    assert told(*[f"[rank{rank}]: {TRACE[0]}" for rank in range(500)], *TRACE, KEY)[0] == KEY
    assert max(map(len, many._bursts)) <= 64 and many.failure() is not None
    assert len(words(*[line for _ in range(50) for line in (KEY, "step")])._bursts) <= 8


def test_an_error_in_colour_and_one_of_c_plus_plus_are_read() -> None:
    assert told("\x1b[31mValueError: \x1b[0mno\x1b[0m") == ("ValueError: no", None)
    assert told("terminate called after throwing an instance of 'c10::Error'", "  what():  CUDA error: assert") == (
        "CUDA error: assert", None)  # fmt: skip


def test_words_about_an_error_that_follows_are_not_the_error() -> None:
    for heading in ("Exception in thread Thread-1 (run):", "Error executing job with overrides: ['lr=1']"):
        assert told(heading, *TRACE, KEY) == (KEY, None)


def test_the_first_error_of_a_group_is_the_reason() -> None:
    def raise_group() -> None:
        raise BaseExceptionGroup("many", [KeyError("size"), ValueError("no")])

    with pytest.raises(BaseExceptionGroup) as raised:
        raise_group()
    assert told(*"".join(traceback.format_exception(raised.value)).splitlines()) == (KEY, None)


@pytest.mark.parametrize(
    "line",
    [
        "train.py: error: the following arguments are required: --data",
        "train.py: error: unrecognized arguments: --lr_",
        "/opt/bin/python3: can't open file '/workspace/trian.py': [Errno 2] No such file or directory",
    ],
)
def test_wrong_arguments_and_a_wrong_path_of_the_script_hold_at_once(line: str, tmp_path: Path) -> None:
    end = ends.failure_end(2, words("usage: train.py", line), (tmp_path,), progress=ends.Made(False, False))
    assert end.code == ExitCode.USER and "look at `script`, `command` and `args`" in end.detail


@pytest.mark.parametrize(
    ("error", "name", "early", "after_a_step", "after_a_checkpoint"),
    [
        ("ModuleNotFoundError: No module named 'einops'", "import", 64, 64, 70),
        ("ImportError: cannot import name 'x' from 'y'", "import", 64, 64, 70),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "cuda-memory", 64, 70, 70),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "cuda-memory", 64, 70, 70),
        ("KeyError: 'size'", "script", 64, 64, 70),
        ("AttributeError: 'NoneType' object has no attribute 'x'", "script", 64, 64, 70),
        ("SyntaxError: invalid syntax", "script", 64, 64, 70),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'", "file", 64, 70, 70),
        ("python3: can't open file '/workspace/train.py': [Errno 2] No such file", None, 70, 70, 70),
        ("requests.exceptions.ConnectionError: Connection reset by peer", None, 70, 70, 70),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", None, 70, 70, 70),
        (GLOO, "peer-lost", 70, 70, 70),
        (NCCL, "peer-lost", 70, 70, 70),
    ],
)
def test_an_error_has_a_cause_and_is_the_users_where_a_retry_would_repeat_it(
    error: str, name: str | None, early: int, after_a_step: int, after_a_checkpoint: int, tmp_path: Path
) -> None:
    cause = failures.cause_of(error)
    assert name is None or (cause is not None and cause.name == name)
    for made, code in (((False, False), early), ((True, False), after_a_step), ((True, True), after_a_checkpoint)):
        end = ends.failure_end(1, words(*TRACE, error), (tmp_path,), progress=ends.Made(*made))
        if name is not None:
            assert end.code == code and error[:40] in end.detail and cause is not None and cause.cure in end.detail
    assert ends.failure_end(-9, words(*TRACE, error), (tmp_path,), progress=ends.Made(False, False)).code == 70, (
        "it was killed"
    )


def test_a_missing_gpu_is_the_users_where_the_machine_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for error in ("AssertionError: Torch not compiled with CUDA enabled", "RuntimeError: No CUDA GPUs are available",
                  "RuntimeError: Found no NVIDIA driver on your system."):  # fmt: skip
        for device, code in ((tmp_path / "none", 64), (tmp_path, 70)):
            monkeypatch.setattr(failures, "_GPU", str(device))
            end = ends.failure_end(1, words(*TRACE, error), (tmp_path,), progress=ends.Made(False, False))
            assert end.code == code and "insists on CUDA" in end.detail


def test_a_node_that_only_lost_its_peer_is_not_at_fault(tmp_path: Path) -> None:
    assert ends.failure_end(1, words(*TRACE, NCCL), (tmp_path,), progress=ends.Made(nodes=2)).reason == ends.PEER_LOST
    assert ends.failure_end(1, words(*TRACE, NCCL), (tmp_path,), progress=ends.Made(nodes=1)).reason == ""
    assert ends.failure_end(-11, words(*TRACE, NCCL), (tmp_path,), progress=ends.Made(nodes=2)).reason == ""


@pytest.mark.parametrize(
    ("code", "said", "elsewhere", "end"),
    [
        (1, KEY, True, (64, ends.PEER_LOST)),
        (1, NCCL, True, (70, ends.PEER_LOST)),
        (-9, KEY, True, (70, ends.PEER_LOST)),
        (65, KEY, True, (65, ends.PEER_LOST)),
        (65, KEY, False, (65, "")),
        (76, NCCL, False, (76, "")),
        (1, KEY, False, (64, "")),
    ],
)
def test_an_end_has_code_reason_and_rank(
    code: int, said: str, elsewhere: bool, end: tuple[int, str], tmp_path: Path
) -> None:
    found = ends.failure_end(
        code, words(*of(3, [*TRACE, said])), (tmp_path,), elsewhere, ends.Made(False, False, 2), rank=5
    )
    assert (found.code, found.reason, found.rank) == (*end, 3)
    assert ends.failure_end(1, words("bye"), (tmp_path,), rank=5).rank == 5


def test_of_torchruns_summary_the_first_failure_counts() -> None:
    torchrun = launcher.make_launcher(
        {"launcher": "torchrun", "command": ["x"]}, Place("c", 1, "n", "1", 0, 1, 2, "x:1", "", "")
    )
    for line in TRAILER:
        torchrun.hear(line)
    assert torchrun.exit_code(1, "", False) == 1 and torchrun.rank == 1, "not those that torchrun has stopped for it"


def test_the_words_of_an_end_have_the_scripts_own_exit_code(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path)
    process = camp.start(1, sys.executable, "-c", "{}['size']")
    process.communicate()
    assert process.returncode == camp.ended().exit_code == ExitCode.USER
    assert camp.ended().detail.startswith("the job exited with 1; it said last: KeyError: 'size'")
