"""The end of a rank, and a termination message that fits what the kubelet keeps."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from trainer.contract import exits
from trainer.contract.exits import PEER_LOST, TERMINATION_LIMIT_BYTES, ExitCode
from trainer.supervisor import ends
from trainer.supervisor.ends import End
from trainer.supervisor.failures import LastWords


@pytest.mark.parametrize(
    ("code", "died", "end"),
    [
        (ExitCode.USER, False, End(ExitCode.USER, "exited with 64", "user", 3)),
        (ExitCode.NUMERIC, True, End(ExitCode.NUMERIC, f"exited with {int(ExitCode.NUMERIC)}", "numeric", 3)),
        (1, True, End(ExitCode.INTERNAL, "exited with 1", PEER_LOST, 3)),
        (-signal.SIGKILL, True, End(ExitCode.INTERNAL, "died of SIGKILL", "signal", 3, 9)),
        (-signal.SIGABRT, False, End(ExitCode.INTERNAL, "died of SIGABRT", PEER_LOST, 3, 6)),
        (-200, True, End(ExitCode.INTERNAL, "died of signal 200", "signal", 3, 200)),
    ],
)
def test_a_rank_that_failed_first_ends_by_its_own_code_or_may_have_lost_a_peer(code: int, died: bool, end: End) -> None:
    assert ends.rank_end(code, 3, died) == end


def fits(text: str) -> bool:
    return len(text.encode()) <= TERMINATION_LIMIT_BYTES


def test_a_message_that_fits_stays_whole() -> None:
    message = {"detail": "größer", "ranks": [{"rank": 0, "detail": "x", "groups": [1]}]}
    assert ends.fitting_text(message) == '{"detail":"größer","ranks":[{"rank":0,"detail":"x","groups":[1]}]}'
    assert json.loads(ends.fitting_text({"detail": "without ranks"})) == {"detail": "without ranks", "ranks": []}


def test_of_a_long_message_the_ranks_words_go_first_then_their_groups_then_they() -> None:
    def left(count: int, words: int, groups: int) -> list[dict[str, Any]]:
        rows = [{"rank": rank, "detail": "w" * words, "groups": "g" * groups} for rank in range(count)]
        text = ends.fitting_text({"detail": "why", "ranks": rows})
        assert fits(text) and json.loads(text)["detail"] == "why"
        return list(json.loads(text)["ranks"])

    assert [set(row) for row in left(4, 2000, 10)] == [{"rank", "groups"}] * 4
    assert [set(row) for row in left(4, 2000, 2000)] == [{"rank"}] * 4
    assert left(4000, 1, 1) == []


@pytest.mark.parametrize("length", [5000, 40_000, 1_000_000])
def test_of_a_detail_that_is_still_too_long_at_most_a_quarter_more_than_needed_is_cut(length: int) -> None:
    text = ends.fitting_text({"detail": "d" * length, "ranks": [{"rank": 0}]})
    detail = json.loads(text)["detail"]
    assert fits(text) and json.loads(text)["ranks"] == []
    assert len(detail) >= (TERMINATION_LIMIT_BYTES - len('{"detail":"","ranks":[]}')) * 3 // 4 - 1
    assert set(detail) == {"d"}


def test_a_code_of_its_own_and_a_signal_say_more_than_words() -> None:
    words = LastWords()
    words.hear("ModuleNotFoundError: No module named 'x'")
    made = ends.Made(stepped=False, sealed=False)
    assert ends.own_code(1, words, made) == ExitCode.USER, "a retry would repeat it"
    assert [ends.own_code(code, words, made) for code in (0, -9, ExitCode.STORAGE)] == [0, -9, ExitCode.STORAGE]


def test_signals_have_names() -> None:
    assert ends.signal_name(9) == "SIGKILL" and ends.signal_name(99) == "signal 99"


def test_the_reason_of_a_code_is_its_name() -> None:
    assert {ExitCode(code).name.lower() for code in exits.REASONS} == set(exits.REASONS.values())
    assert all(reason == ExitCode(code).name.lower() for code, reason in exits.REASONS.items())
