"""The drill of jobs judges an attempt whose node was lost, also where it is the last one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.drills import jobs
from tests.drills.parts.jobs_habits import draw
from tests.drills.parts.jobs_oracle import Judge, Ledger
from tests.trainer.supervisor.histories import Attempt, Case, History

LOST = -9


def attempt(number: int, codes: tuple[int, ...]) -> Attempt:
    return Attempt(number, codes, [None] * len(codes), [""] * len(codes), [""] * len(codes), {}, None)


@pytest.mark.parametrize(
    ("codes", "faults"),
    [((LOST,), 1), ((0,), 1), ((LOST, LOST), 0), ((LOST, 0), 1)],
)
def test_an_attempt_may_never_begin_where_another_node_was_lost_before(
    codes: tuple[int, ...], faults: int, tmp_path: Path
) -> None:
    history = History(Case("", 10, "auto"), tmp_path / "camp", 1.0, lambda sealed: -1)
    judge = Judge(history, Ledger([]), {"nodes": len(codes)})
    judge.resumed(attempt(1, codes))
    assert len(judge.faults) == faults


def test_a_node_that_is_lost_in_the_last_attempt_too_is_a_fault_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_all(history: History, program: Any) -> Attempt:
        (history.camp.root / "sealed").mkdir(exist_ok=True)
        history.attempts.append(attempt(len(history.attempts) + 1, (LOST,)))
        return history.attempts[-1]

    monkeypatch.setattr(History, "attempt", lose_all)
    chance = random.Random(1)
    plan = {**draw(chance, "file each"), "damage": {}}
    faults, became = jobs.play(chance, plan, tmp_path / "case", 1.0)
    assert faults[-1] == "the node was lost in the last attempt too" and became == "nothing"
