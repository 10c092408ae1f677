"""`bivouac open`: only places that exist, by the record's state and the spec."""

from __future__ import annotations

import io
import json
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from infra.cli.look import open as looking
from infra.cli.look.open import open_command, places
from infra.console.plain_console import PlainConsole
from infra.errors import UserError
from infra.record.events import fold
from tests.unit.cli.test_unreadable_objects import SPEC, Recorded

REHEARSED = SPEC.model_copy(update={"addons": SPEC.addons.model_copy(update={"grafana": True})})
AWS = REHEARSED.model_copy(update={"target": "aws"})


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path))
    return tmp_path / f"{SPEC.account}-{SPEC.region}" / SPEC.campaign


def names(spec: Any, has_record: bool = True, *, is_torn_down: bool = False, has_begun: bool = True) -> list[str]:
    world = Recorded()
    if is_torn_down:
        world.event("stage.finished", stage="teardown", seconds=1.0, outputs={})
    state = fold(world.store.events() if has_begun else ())
    return [row.name for row in places(spec, state, world.store if has_record else None)]


def test_each_state_has_its_places() -> None:
    assert names(AWS) == ["report", "dashboards", "grafana", "cluster", "record"]
    assert names(AWS, is_torn_down=True) == ["report", "dashboards", "record"]
    assert names(AWS, has_begun=False) == ["report", "dashboards", "record"]
    assert names(AWS, has_record=False) == ["report"], "nothing is left but the results folder"


def test_the_record_is_shown_where_it_lies() -> None:
    world = Recorded()
    row = places(AWS, fold(world.store.events()), world.store)[-1]
    assert row.address.endswith(f"/{world.store.bucket}?region={AWS.region}&prefix={world.store.prefix}/")


def test_a_rehearsal_is_in_no_console_of_amazons() -> None:
    rehearsed = REHEARSED.model_copy(update={"target": "rehearsal"})
    assert names(rehearsed) == ["report", "dashboards", "grafana"]


def test_kept_series_are_a_place(results: Path) -> None:
    results.mkdir(parents=True)
    (results / "series.om.gz").touch()
    assert names(AWS, has_record=False) == ["report", "dashboards"]


def test_the_command_lists_them_and_opens_what_has_an_address(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, opened = Recorded(), list[str]()
    monkeypatch.setattr(looking, "record_of", lambda campaign, region: world.store)
    monkeypatch.setattr(webbrowser, "open", lambda url: not opened.append(url))
    results.mkdir(parents=True)
    (results / "report.html").touch()
    output = io.StringIO()
    console = PlainConsole(file=output, width=200)
    assert open_command("x", "us-east-1", None, console, as_json=True) == 0
    rows = json.loads(output.getvalue())
    assert rows[0] == {"name": "report", "address": (results / "report.html").as_uri(), "is_url": True}
    assert open_command("x", "us-east-1", "report", console) == 0 and opened == [rows[0]["address"]]
    assert open_command("x", "us-east-1", "dashboards", console) == 0 and len(opened) == 1
    assert output.getvalue().endswith(f"type: bivouac dashboard {SPEC.campaign}\n")
    with pytest.raises(UserError, match="no such place now"):
        open_command("x", "us-east-1", "moon", console)
