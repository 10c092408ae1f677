"""The page of a game day: distributions over repeats, what was left out, and a history that survives a torn line."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from infra.errors import UserError
from infra.monitoring.alerts import alerts
from infra.rehearsal.drills import game_day as page
from infra.rehearsal.drills.conduct import remember
from infra.rehearsal.drills.game_day import game_day, spread, write_game_day
from infra.rehearsal.drills.history import HISTORY, NEWEST, append_results, kept_results
from infra.rehearsal.drills.judge import DrillResult
from infra.spec.drills.scenarios import scenarios

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
NODE = DrillResult(
    fault="node-killed", campaign="a", day="2026-11-26", step=60, sign="it is dead", sign_by="steward", sign_s=4.0,
    alerts={"PodSilent": 11.0, "Straggler": 3.0}, action="node replaced", committed_s=100.0, lost_steps=8,
    lost_usd=Decimal("0.38"), left=(), compared_steps=40, equal_steps=40,
)  # fmt: skip
LATE = NODE.model_copy(
    update={"campaign": "b", "sign_s": 6.0, "committed_s": None, "problems": ("no event held",), "equal_steps": 39}
)
QUIET = DrillResult(fault="steward-killed", campaign="a", day="2026-11-25", step=90, committed_s=18.0)


def test_a_fault_has_its_distributions_over_repeats_and_its_problems() -> None:
    day = game_day([NODE, QUIET, LATE], NOON)
    quiet, node = sorted(day.faults, key=lambda fault: fault.drills)
    assert (node.fault, node.drills, node.as_expected, node.never_committed) == ("node-killed", 2, 1, 1)
    assert node.seen_s is not None and (node.seen_s.median, node.seen_s.p95) == (5.0, 6.0)
    assert node.pages.keys() == {"PodSilent"}, "a ticket pages nobody"
    assert node.committed_s is not None and node.committed_s.text == "100"
    assert (node.total_usd, node.problems) == (Decimal("0.76"), {"no event held": 1})
    assert (node.same_losses, quiet.same_losses) == ("79 of 80", "none repeated")
    assert (quiet.seen_by, quiet.seen_s, quiet.unclean, node.unclean) == ({"nobody": 1}, None, 1, 0)
    assert (day.drills, day.as_expected, day.total_usd) == (3, 2, Decimal("0.76"))


def test_a_campaign_of_several_costly_faults_is_compared_once() -> None:
    other = NODE.model_copy(update={"fault": "network-cut", "step": 200})
    assert (game_day([NODE, other], NOON).compared_steps, game_day([NODE, LATE], NOON).compared_steps) == (40, 80)


@pytest.mark.parametrize(
    ("values", "median", "p95"),
    [([7.0], 7.0, 7.0), ([3.0, 1.0, 2.0], 2.0, 3.0), (list(map(float, range(100))), 49.5, 94.0)],
)
def test_a_spread_is_the_median_and_the_nearest_rank(values: list[float], median: float, p95: float) -> None:
    distribution = spread(values)
    assert distribution is not None and (distribution.median, distribution.p95) == (median, p95)
    assert spread([]) is None


def test_what_no_drill_has_shown_is_on_the_page() -> None:
    day = game_day([NODE], NOON)
    assert day.unexercised.keys() == scenarios().keys() - {"node-killed"}
    pages = {name for name, rule in alerts().items() if rule.severity == "page"}
    assert day.silent_alerts.keys() == pages - {"PodSilent"} and "PodSilent" in pages
    text = page.html(day)
    assert "{{" not in text, "a template's place is no text"
    assert all(name in text for name in (*day.unexercised, *day.silent_alerts))


def test_an_expected_end_is_shown_and_a_fault_never_struck_has_its_reason() -> None:
    drill_result = DrillResult(
        fault="nan", campaign="c", day="2026-11-27", step=63, action="ended as held", ended_s=1.7
    )
    day = game_day([drill_result], NOON)
    (fault,) = day.faults
    assert fault.committed_s is not None and fault.committed_s.median == 1.7 and fault.never_committed == 0
    assert "never in" not in page.html(day)
    absent = {name: scenario.absent_because for name, scenario in scenarios().items() if scenario.absent_because}
    assert absent and all(day.unexercised[name].endswith(f"not struck: {reason}") for name, reason in absent.items())


def test_a_fault_that_this_version_does_not_have_stays(tmp_path: Path) -> None:
    day = game_day([NODE.model_copy(update={"fault": "moon-fell"})], NOON)
    assert [fault.fault for fault in day.faults] == ["moon-fell"]


def test_three_files_are_written_and_the_page_loads_nothing(tmp_path: Path) -> None:
    evil = LATE.model_copy(update={"problems": ("<script>alert(1)</script>",)})
    html, markdown, rows = write_game_day(tmp_path / "new", game_day([NODE, evil, QUIET], NOON))
    text = html.read_text()
    assert "<script" not in text and "&lt;script&gt;" in text and not re.search(r'(?:src|href)="', text)
    cells = next(line for line in markdown.read_text().splitlines() if line.startswith("| node-killed"))
    assert [cell.strip() for cell in cells.strip("|").split("|")] == [
        "node-killed", "2", "1", "steward", "5 / 6", "PodSilent 11 / 11", "node replaced", "100", "8 / 8", "0.76",
        "79 of 80",
    ]  # fmt: skip
    assert [fault["fault"] for fault in json.loads(rows.read_text())["faults"]] == ["node-killed", "steward-killed"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        write_game_day(tmp_path / "file", game_day([NODE], NOON))
    with pytest.raises(UserError, match="no drill has left a result"):
        write_game_day(tmp_path / "other", game_day([], NOON))


def test_a_result_from_before_the_history_stays_when_its_fault_strikes_again(tmp_path: Path) -> None:
    (tmp_path / NEWEST).write_text(json.dumps([QUIET.model_dump(mode="json")]))
    again = QUIET.model_copy(update={"campaign": "later"})
    remember(tmp_path / NEWEST, [again])
    assert kept_results(tmp_path) == [QUIET, again]


def test_a_result_that_a_newer_version_has_kept_is_read(tmp_path: Path) -> None:
    newer = QUIET.model_dump(mode="json") | {"of_tomorrow": 1}
    (tmp_path / HISTORY).write_text(json.dumps(newer) + "\n")
    assert kept_results(tmp_path) == [QUIET]


def test_the_history_has_each_strike_once_and_those_from_before_it(tmp_path: Path) -> None:
    old = QUIET.model_copy(update={"campaign": "before"})
    (tmp_path / NEWEST).write_text(json.dumps([row.model_dump(mode="json") for row in (old, NODE)]))
    append_results(tmp_path, [NODE])
    append_results(tmp_path, [NODE, LATE])
    assert kept_results(tmp_path) == [old, NODE, LATE]
    with (tmp_path / HISTORY).open("a") as file:
        file.write('{"fault": "node')
    append_results(tmp_path, [QUIET])
    assert kept_results(tmp_path) == [old, NODE, LATE, QUIET]
