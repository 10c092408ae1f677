"""The leash without an engine: until when it holds, and what makes it let go."""

from __future__ import annotations

import errno
import io
import os
import runpy
from collections.abc import Iterator

import pytest

from infra.engine import leash


class Line:
    """Standard input of the leash, by a virtual clock: each read gives the next word, silence lets time pass."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.words, self.ended = 100.0, list[bytes | float](), list[str]()
        patch.setattr(leash, "now", lambda: self.now)
        patch.setattr(leash, "end", self.ended.append)
        patch.setattr(leash.signal, "signal", lambda *_: None)
        patch.setattr(leash.select, "select", self._select)
        patch.setattr(os, "read", self._read)

    def _read(self, descriptor: int, _: int) -> bytes:
        assert descriptor == 0, "standard input"
        word = self.words.pop(0)
        assert isinstance(word, bytes)
        return word

    def _select(self, of: list[int], _: object, __: object, seconds: float) -> tuple[list[int], list[int], list[int]]:
        assert of == [0], "standard input"
        if self.words and isinstance(self.words[0], bytes):
            return [0], [], []
        silence = float(self.words.pop(0)) if self.words else seconds  # type: ignore[arg-type]
        self.now += min(silence, seconds)
        return [], [], []


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    yield Line(monkeypatch)


def test_done_lets_the_engine_go(line: Line) -> None:
    line.words = [b"130\n", b"do", b"ne\n"]
    assert leash.main("m") == 0 and line.ended == []


def test_a_line_that_closes_without_done_ends_the_engine_at_once(line: Line) -> None:
    line.words = [b"130\n", b""]
    assert leash.main("m") == 1 and line.ended == ["m"] and line.now == 100


def test_a_lease_that_is_no_longer_renewed_ends_the_engine_when_it_is_over(line: Line) -> None:
    line.words = [b"130\n", 10.0, b"140\n", 99.0, b""]
    assert leash.main("m") == 1 and line.ended == ["m", "m"] and line.now == 140


def test_an_engine_that_starts_after_the_lease_is_over_is_ended_until_the_driver_ends(line: Line) -> None:
    line.words = [b"130\n", 99.0, 99.0, b"150\n", b"do", b"ne\n"]
    assert leash.main("m") == 1 and line.ended == ["m"] * 5, "a word that comes too late makes it no longer"


def test_of_several_words_at_once_the_last_counts(line: Line) -> None:
    line.words = [b"130\n150\n", b"12", b"0\n", 99.0, b""]
    assert leash.main("m") == 1 and line.now == 120


def test_who_never_says_a_word_has_the_bound(line: Line) -> None:
    line.words = [99.0, b""]
    assert leash.main("m") == 1 and line.now == 120, "twenty seconds"


def test_a_moment_that_has_passed_ends_the_engine_without_a_wait(line: Line) -> None:
    line.words = [b"0.0\n", b""]
    assert leash.main("m") == 1 and line.ended == ["m", "m"] and line.now == 100


@pytest.mark.filterwarnings("ignore:'infra.engine.leash' found in sys.modules")
@pytest.mark.parametrize(("word", "code"), [(b"done\n", 0), (b"", 1)])
def test_the_script_holds_the_leash_of_the_mark_that_it_is_given(
    line: Line, monkeypatch: pytest.MonkeyPatch, word: bytes, code: int
) -> None:
    paths: list[str] = []

    def environment_of(path: str, mode: str = "r") -> io.BytesIO:
        paths.append(path)
        return io.BytesIO(b"BIVOUAC_ENGINE=of another\0")

    monkeypatch.setattr("builtins.open", environment_of)
    monkeypatch.setattr("sys.argv", ["leash.py", "mark-1"])
    line.words = [word]
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("infra.engine.leash", run_name="__main__")
    assert ended.value.code == code and bool(paths) is bool(code), "it looks for whom to end"


class Processes:
    """pid -> (name, parent); what is signalled goes when it heeds that signal."""

    def __init__(self, patch: pytest.MonkeyPatch, living: dict[int, tuple[str, int]], stubborn: frozenset[int]) -> None:
        self.now, self.living, self.stubborn, self.sent = 0.0, dict(living), stubborn, list[tuple[float, int, str]]()
        patch.setattr(leash, "now", lambda: self.now)
        patch.setattr(leash, "_look", lambda mark: (dict.fromkeys(self.living, "m"), None))
        patch.setattr(leash, "_parent", lambda pid: self.living[pid][1])
        patch.setattr(leash, "_is_engine", lambda pid: self.living[pid][0] == "pulumi")
        patch.setattr(leash, "_send", self._send)
        patch.setattr(leash.time, "sleep", self._sleep)

    def _send(self, pid: int, number: leash.signal.Signals) -> None:
        self.sent.append((self.now, pid, number.name))
        if number is leash.signal.SIGKILL or pid not in self.stubborn:
            self.living.pop(pid, None)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_engine_is_asked_and_its_plugins_go_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(monkeypatch, {1: ("pulumi", 0), 2: ("pulumi-aws", 1)}, frozenset())
    leash.end("m", 20)
    assert processes.sent[0] == (0.0, 1, "SIGINT") and [pid for _, pid, _ in processes.sent] == [1, 2]
    (at, _, how) = processes.sent[1]
    assert how == "SIGKILL" and 2 < at < 2.5


def test_an_engine_that_does_not_heed_is_ended_by_force_after_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(monkeypatch, {1: ("pulumi", 0), 2: ("pulumi-aws", 1)}, frozenset({1, 2}))
    leash.end("m")
    forced = [at for at, _, how in processes.sent if how == "SIGKILL"]
    assert len(forced) == 2 and all(20 < at < 20.5 for at in forced)


def test_an_engine_that_cannot_be_looked_for_is_not_taken_for_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(monkeypatch, {1: ("pulumi", 0)}, frozenset({1}))
    looks, real = list[float](), leash._look

    def look(mark: str | None) -> tuple[dict[int, str], OSError | None]:
        looks.append(processes.now)
        error = OSError(errno.EMFILE, "Too many open files")
        return ({}, error) if len(looks) <= 3 else (real(mark)[0], error if processes.living else None)

    monkeypatch.setattr(leash, "_look", look)
    leash.end("m", 20)
    assert [how for _, _, how in processes.sent] == ["SIGINT", "SIGKILL"] and not processes.living
    assert processes.sent[0][0] == pytest.approx(0.3), "asked as soon as it was seen, whatever else is hidden"


def test_processes_of_which_nobody_sees_the_engine_are_all_asked_and_have_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = Processes(monkeypatch, {1: ("pulumi", 0), 2: ("pulumi-aws", 1)}, frozenset({1, 2}))

    def refuse(pid: int) -> int:
        raise OSError(errno.ENFILE, "Too many open files in system")

    monkeypatch.setattr(leash, "_parent", refuse)
    leash.end("m", 20)
    assert [(pid, how) for at, pid, how in processes.sent if at == 0] == [(1, "SIGINT"), (2, "SIGINT")]
    assert min(at for at, _, how in processes.sent if how == "SIGKILL") > 20


def test_a_file_of_a_process_that_a_limit_hides_is_no_ended_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *_: object) -> None:
        raise OSError(errno.ENFILE, "Too many open files in system", path)

    monkeypatch.setattr(leash, "open", refuse, raising=False)
    for look in (
        leash.marked_processes,
        lambda: leash.mark_of(1),
        lambda: leash._zombie(1),
        lambda: leash._is_engine(1),
    ):
        with pytest.raises(OSError, match="Too many open files"):
            look()
