"""`bivouac drill`: the list, the refusals, and what its exit code says."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra import target
from infra.cli.run.drill import drill_command
from infra.errors import UserError
from infra.rehearsal.drills.conduct import DrillReport
from infra.rehearsal.drills.history import append_results
from infra.rehearsal.drills.judge import DrillResult
from infra.spec.drills.scenarios import scenarios

WELL = DrillResult(fault="rank-killed", campaign="drill-0", day="2026-11-26", step=60, left=())


@pytest.fixture
def run() -> Callable[..., tuple[int, str]]:
    def look(*names: str, show_list: bool = False, as_json: bool = False) -> tuple[int, str]:
        console = Console(file=StringIO(), width=200)
        code = drill_command(list(names), 0, 1, show_list, None, console, as_json=as_json)
        text: Any = console.file
        return code, text.getvalue()

    return look


def test_the_list_has_each_fault_with_what_happens_and_what_is_expected(run: Callable[..., tuple[int, str]]) -> None:
    code, text = run(show_list=True)
    assert code == 0 and all(name in text for name in scenarios())
    words = " ".join(text.split())
    assert "alert PodSilent" in words and "the attempt ends (node)" in words and "no alert that pages" in words
    rows = json.loads(run(show_list=True, as_json=True)[1])
    assert rows["node-killed"]["expect"]["failure"] == "node" and rows.keys() == scenarios().keys()


def test_an_unknown_name_and_none_are_refused_before_anything_starts(run: Callable[..., tuple[int, str]]) -> None:
    with pytest.raises(UserError, match="no drill of this name") as refused:
        run("rank-killed", "rank-kiled")
    assert refused.value.seen == "rank-kiled" and "rank-killed" in (refused.value.cure or "")
    with pytest.raises(UserError, match="no drill was named"):
        run()
    with pytest.raises(UserError, match="nothing says when such a campaign may end") as alone:
        run("destroy-interrupted", "dependency-violation")
    assert "rank-killed" in (alone.value.cure or "")


def test_the_page_of_a_game_day_needs_no_fault_and_runs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path))
    append_results(tmp_path, [WELL])
    console = Console(file=StringIO(), width=400)
    assert drill_command(None, 0, 1, False, None, console, report=tmp_path / "day") == 0
    assert {path.suffix for path in (tmp_path / "day").iterdir()} == {".html", ".md", ".json"}
    text: Any = console.file
    assert str(tmp_path / "day" / "game-day.html") in text.getvalue()


@pytest.mark.parametrize(
    ("results", "missed", "code"),
    [
        ((WELL,), (), 0),
        ((WELL, WELL.model_copy(update={"problems": ("the alert PodSilent has not fired",)})), (), 1),
        ((WELL,), ("node-killed",), 1),
    ],
)
def test_the_exit_code_says_whether_each_expectation_was_put_to_the_proof_and_holds(
    run: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, results: Any, missed: Any, code: int
) -> None:
    asked = list[tuple[list[str], int, Path | None]]()

    def drill(names: list[str], draws: int, seed: int, page: Path | None, say: object) -> DrillReport:
        asked.append((names, seed, page))
        return DrillReport(results, missed)

    monkeypatch.setattr(target, "drill", drill)
    assert run("rank-killed", "node-killed", "rank-killed")[0] == code
    assert asked == [(["rank-killed", "node-killed"], 1, None)], "each once"
    text = run("rank-killed")[1]
    assert "rank-killed: as expected" in text and ("has not struck" in text) == bool(missed)
    rows = json.loads(run("rank-killed", as_json=True)[1])
    assert [row["fault"] for row in rows] == ["rank-killed"] * len(results)
