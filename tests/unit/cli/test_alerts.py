"""`bivouac alerts`: what fires and what has ended, by the record alone."""

from __future__ import annotations

import io
import json

import pytest

from infra.cli.look import alerts
from infra.console.plain_console import PlainConsole
from infra.record.payloads.alerts import AlertEnded, AlertFired, AlertsUnseen
from infra.record.payloads.stages import StageFinished
from infra.record.store import CampaignStore
from tests.worlds.s3 import FakeS3, Time

HELD = {"alertname": "Held", "campaign": "train"}


def fired(labels: dict[str, str], began: str) -> AlertFired:
    runbook = f"docs/runbooks/{labels['alertname']}.md"
    return AlertFired(
        alert=labels["alertname"], severity="page", summary="it bills", runbook=runbook, began=began, labels=labels
    )


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(time: Time, monkeypatch: pytest.MonkeyPatch) -> CampaignStore:
    store = CampaignStore(FakeS3(time), "state", "train", "steward-1", now=time.wall)
    monkeypatch.setattr(alerts, "record_of", lambda campaign, region: store)
    return store


def told(as_json: bool = False) -> str:
    output = io.StringIO()
    assert alerts.alerts_command("train", "us-east-1", as_json, PlainConsole(file=output, width=200)) == 0
    return output.getvalue()


def test_a_record_without_an_alert_says_so(store: CampaignStore) -> None:
    assert told() == "no alert is in its record\n"


def test_each_alert_has_its_time_its_end_and_its_runbook(store: CampaignStore, time: Time) -> None:
    store.append(fired(HELD, "t1"))
    time.go(90)
    store.append(AlertEnded(alert="Held", began="t1", labels=HELD))
    store.append(fired(HELD, "t2"))
    header, first, second = told().splitlines()
    assert header.split()[:3] == ["fired", "for", "severity"]
    assert "1 min 30 s" in first and "docs/runbooks/Held.md" in first and " fires " in second
    rows = json.loads(told(as_json=True))
    assert [(row["alert"], row["ended"] is None) for row in rows] == [("Held", False), ("Held", True)]


def test_after_the_teardown_nothing_fires(store: CampaignStore) -> None:
    store.append(fired(HELD, "t1"))
    store.append(StageFinished(stage="teardown", seconds=1.0))
    assert " fires " not in told() and json.loads(told(as_json=True))[0]["ended"] is not None


def test_alerts_that_could_not_be_seen_are_no_silence(store: CampaignStore) -> None:
    store.append(AlertsUnseen(why="refused"))
    assert "the alerts cannot be seen: refused; no alert since then is not the same as all well" in told()
