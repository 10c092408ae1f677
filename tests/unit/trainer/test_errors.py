"""Errors that end a rank: their words, their codes, and which error of Python becomes which of them."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest

from trainer.contract import exits
from trainer.contract.exits import ExitCode, limit_of
from trainer.errors import (
    ConfigError,
    DataError,
    GpuFailed,
    OutOfFiles,
    OutOfMemory,
    PeerLost,
    StorageError,
    TrainerError,
    classify,
    first_line,
    lasting,
    limit_error,
    storage_error,
    unread,
)


def test_codes_are_those_of_sysexits_and_of_nothing_else() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0, "USER": 64, "DATA": 65, "INTERNAL": 70, "SICK": 71, "STORAGE": 74, "INTERRUPTED": 75, "NUMERIC": 76,
    }  # fmt: skip
    assert exits.TERMINATION_LIMIT_BYTES == 4096, "of which the kubelet keeps no more"


def test_a_termination_message_is_written_up_to_its_limit_and_no_error_stops_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(exits.TERMINATION_LOG_VARIABLE, str(tmp_path / "end"))
    exits.write_termination("x" * 5000)
    assert (tmp_path / "end").read_text() == "x" * 4096
    monkeypatch.setenv(exits.TERMINATION_LOG_VARIABLE, str(tmp_path / "none" / "end"))
    exits.write_termination("x")
    assert "could not be written" in capsys.readouterr().err
    assert exits.fitting(["x" * 4097, "x" * 4096, "y"]) == "x" * 4096
    monkeypatch.setattr(exits.Path, "write_bytes", lambda path, content: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        exits.write_termination("a fault of ours")


def test_an_error_says_what_was_seen_and_the_cure_and_comes_whole_from_a_worker() -> None:
    assert str(DataError("no data", "a.bin", "stage it")) == "no data; seen: a.bin; cure: stage it"
    assert str(DataError("no data")) == "no data" and str(DataError("no data", 0)) == "no data; seen: 0"
    copy = pickle.loads(pickle.dumps(DataError("no data", "a.bin", "stage it")))
    assert (type(copy), copy.what, copy.seen, copy.cure) == (DataError, "no data", "a.bin", "stage it")


def test_the_first_line_of_an_error_without_words_is_its_name() -> None:
    assert first_line(RuntimeError("one\ntwo")) == "one" and first_line(MemoryError()) == "MemoryError"


@pytest.mark.parametrize(
    ("number", "lasts"),
    [
        (errno.ENOENT, True), (errno.ENOTDIR, True), (errno.EISDIR, True), (errno.EACCES, True), (errno.EPERM, True),
        (errno.ELOOP, True), (errno.ENAMETOOLONG, True), (errno.EIO, False), (errno.ESTALE, False),
        (errno.EMFILE, False),
    ],
)  # fmt: skip
def test_what_the_files_or_their_permissions_say_lasts(number: int, lasts: bool) -> None:
    assert lasting(OSError(number, "refused")) is lasts


def test_a_failed_read_is_the_refusal_where_another_try_would_fail_too() -> None:
    refusal = ConfigError("no configuration", "a.json", "mount it")
    assert unread(FileNotFoundError(errno.ENOENT, "none"), refusal) is refusal
    assert unread(ValueError("no JSON"), refusal) is refusal
    denied = unread(PermissionError(errno.EACCES, "denied"), refusal)
    assert type(denied) is ConfigError and denied.what == "no permission to read" and denied.seen == "a.json"
    passing = unread(OSError(errno.EIO, "gone"), refusal)
    assert type(passing) is StorageError and passing.seen == "a.json" and "mount of this path" in str(passing.cure)
    assert type(unread(OSError(errno.EMFILE, "refused"), refusal)) is OutOfFiles
    assert type(unread(RuntimeError("Too many open files (os error 24)"), refusal)) is OutOfFiles


def test_an_error_of_storage_is_the_limits_that_refused_it() -> None:
    told = storage_error(OSError(errno.EIO, "gone"), "not written", "a.pt", "repair it")
    assert type(told) is StorageError and (told.what, told.seen, told.cure) == ("not written", "a.pt", "repair it")
    refused = storage_error(OSError(errno.ENOMEM, "refused"), "not written", "a.pt", "repair it")
    assert type(refused) is OutOfMemory and refused.seen == "a.pt" and "micro-batch" in str(refused.cure)
    assert limit_error(OSError(errno.EIO, "gone"), "a.pt") is None


def test_an_error_of_ours_stays_as_it_is() -> None:
    for error in (Fault := TrainerError("ours"), DataError("Too many open files")):
        assert classify(error) is error
    assert Fault.exit_code == ExitCode.INTERNAL


LONG = "x" * 2000


@pytest.mark.parametrize(
    ("error", "kind", "most"),
    [
        (RuntimeError("Too many open files " + LONG), OutOfFiles, 800),
        (RuntimeError("CUDA error: no device " + LONG), GpuFailed, 800),
        (RuntimeError("NCCL error " + LONG), PeerLost, 500),
        (KeyError("NCCL error " + LONG), TrainerError, 800),
        (KeyError("CUDA error " + LONG), TrainerError, 800),
        (OSError(errno.ECONNRESET, "Connection reset by peer"), StorageError, 60),
    ],
)
def test_an_error_is_classified_with_the_beginning_of_its_words(
    error: Exception, kind: type[TrainerError], most: int
) -> None:
    failure = classify(error)
    assert type(failure) is kind
    assert len(str(failure.seen)) == min(most, len(f"{type(error).__name__}: {error}"))


def test_a_lost_peers_error_is_told_by_its_first_line() -> None:
    assert classify(RuntimeError("NCCL error\nException raised from x")).seen == "RuntimeError: NCCL error"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EAGAIN, "unavailable"), "processes"),
        (OSError(errno.EAGAIN, "unavailable", "/a/lock"), ""),
        (OSError(errno.EIO, "out of memory"), ""),
        (OSError("out of memory"), "memory"),
        (ValueError("out of memory"), ""),
        (RuntimeError("CUDA error: no device"), ""),
        (RuntimeError("cannot allocate memory in static TLS block"), ""),
    ],
)
def test_a_limit_is_known_by_the_errors_number_before_its_words(error: Exception, reason: str) -> None:
    assert limit_of(error) == reason
