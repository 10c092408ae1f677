"""`bivouac events` prints the record in its sentences; `list` and `events` know a campaign that is gone."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.cli.look import events
from infra.cli.look.events import events_command, print_events
from infra.cli.look.list import list_command
from infra.errors import UserError
from infra.folders import results_folder
from infra.report.record import PACKED, Record
from tests.unit.cli.test_unreadable_objects import PLAN, SPEC, Recorded


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    made = Recorded()
    monkeypatch.setattr(events, "record_of", lambda *_: made.again())
    return made


def shown(**options: Any) -> list[str]:
    out = io.StringIO()
    given = {"follow": False, "tail": None, "as_json": False} | options
    assert events_command(SPEC.campaign, SPEC.region, console=Console(file=out, width=40), **given) == 0
    return out.getvalue().splitlines()


def test_each_event_is_a_line_with_its_time_its_writer_and_its_sentence(recorded: Recorded) -> None:
    lines = shown()
    assert len(lines) == len(recorded.store.events())
    assert lines[0] == "   1  2026-11-22 12:00:02  w        provision begins"
    assert shown(tail=2) == lines[-2:]
    assert [one["kind"] for one in json.loads("".join(shown(as_json=True)))][-1] == "nodes.at-zero"


def test_followed_events_come_once_until_the_campaign_has_ended(recorded: Recorded) -> None:
    story = iter([
        lambda: recorded.event("stage.started", stage="report"),
        lambda: recorded.event("stage.finished", stage="report", seconds=1.0, outputs={}),
    ])  # fmt: skip
    out = io.StringIO()
    print_events(recorded.store.events, Console(file=out), follow=True, tail=1, pause=lambda: next(story)())
    assert [line.split("w        ")[1] for line in out.getvalue().splitlines()][1:] == [
        "report begins", "report finished in 1.0 s",
    ]  # fmt: skip


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """A campaign of which only the results folder knows."""
    made = Recorded()
    for name, value in {"BIVOUAC_RESULTS": tmp_path / "results", "BIVOUAC_CACHE": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    folder = results_folder(SPEC.campaign, SPEC.account, SPEC.region)
    folder.mkdir(parents=True)
    record = Record(SPEC, PLAN, made.store.events(), datetime.now(UTC))
    (folder / PACKED).write_bytes(record.packed())
    (folder.parent / "torn").mkdir()
    (folder.parent / "torn" / PACKED).write_bytes(b"half of it")
    return made


def test_the_events_of_a_campaign_that_is_gone_are_those_that_its_report_kept(gone: Recorded) -> None:
    assert len(shown()) == len(gone.store.events())


def test_events_of_a_campaign_that_nobody_knows_are_an_error(gone: Recorded) -> None:
    with pytest.raises(UserError):
        events_command("nobody", SPEC.region, False, None, False, Console(file=io.StringIO()))


def test_the_list_knows_a_campaign_that_has_ended_and_is_gone(gone: Recorded) -> None:
    out = io.StringIO()
    list_command(SPEC.region, True, Console(file=out))
    rows = json.loads(out.getvalue())["campaigns"]
    assert [(row["campaign"], row["stage"], row["outcome"]) for row in rows] == [(SPEC.campaign, "ended", "done")]
