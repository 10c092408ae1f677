"""`bivouac alerts`: what fires and what has ended, by the record alone."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from infra.cli.look import alerts
from infra.console.plain_console import PlainConsole
from infra.errors import UserError
from infra.notices.notice import Notice, NotSent
from infra.record.payloads.alerts import AlertAcknowledged, AlertEnded, AlertFired, AlertsUnseen
from infra.record.payloads.stages import StageFinished
from infra.record.store import CampaignStore
from tests.unit.cli.test_unreadable_objects import SPEC
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


@pytest.fixture
def sent(store: CampaignStore, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Notice]]:
    """Routes of which the webhook refuses; what they were given."""
    store.put_json("spec.json", SPEC.model_dump(mode="json"))
    given: list[tuple[str, Notice]] = []

    def topic(notice: Notice) -> str:
        given.append(("topic", notice))
        return "took it as message 7"

    def webhook(notice: Notice) -> str:
        given.append(("webhook", notice))
        raise NotSent("the webhook answers with status 404")

    monkeypatch.setattr(alerts, "ways", lambda spec: {"topic": topic, "webhook": webhook})
    monkeypatch.setattr(alerts, "recipients", lambda account, arn: f"{arn.rpartition(':')[2]} goes to nobody")
    return given


def answered(route: str | None = None) -> tuple[int, list[dict[str, object]]]:
    output = io.StringIO()
    code = alerts.alerts_command("train", "us-east-1", True, PlainConsole(file=output), route=route, test=True)
    return code, json.loads(output.getvalue())


def test_a_test_sends_one_message_by_each_route_and_says_what_each_answered(sent: list[tuple[str, Notice]]) -> None:
    assert answered() == (1, [
        {"route": "topic", "sent": True, "answer": "took it as message 7; bivouac_notices goes to nobody"},
        {"route": "webhook", "sent": False, "answer": "the webhook answers with status 404"},
    ])  # fmt: skip
    assert [name for name, _ in sent] == ["topic", "webhook"] and sent[0][1] == sent[1][1]
    assert "nothing has happened" in sent[0][1].subject and len(sent[0][1].subject) < 100


def test_a_test_of_one_route_sends_by_no_other(sent: list[tuple[str, Notice]], store: CampaignStore) -> None:
    before = store.keys("")
    assert answered("topic")[0] == 0 and [name for name, _ in sent] == ["topic"]
    assert store.keys("") == before, "nothing happened to the campaign"


@pytest.mark.parametrize(("route", "test"), [("pager", True), ("topic", False)])
def test_a_route_that_is_not_there_or_not_tested_is_an_error(
    sent: list[tuple[str, Notice]], route: str, test: bool
) -> None:
    with pytest.raises(UserError):
        alerts.alerts_command("train", "us-east-1", False, PlainConsole(), route=route, test=test)
    assert not sent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"why": "known"}, "--why has no meaning here.*add --silence"),
        ({"only": "Held"}, "--only has no meaning here.*add --silence"),
        ({"test": True, "only": "Held"}, "--only with --test"),
        ({"lasts": "2h", "why": "known", "test": True}, "one thing at a time"),
        ({"lasts": "2h", "why": "known", "route": "topic"}, "a route with --silence; cure: add --test"),
    ],
)
def test_an_option_that_would_be_dropped_is_refused(
    sent: list[tuple[str, Notice]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        alerts.alerts_command("train", "us-east-1", False, PlainConsole(), **options)
    assert not sent


def test_an_answer_is_in_the_record_with_its_person_and_shown(store: CampaignStore) -> None:
    store.append(fired(HELD, "t1"))
    store.append(fired({"alertname": "PodSilent"}, "t2"))
    output = io.StringIO()
    console = PlainConsole(file=output, width=200)
    assert alerts.alerts_command("train", "us-east-1", False, console, ack=True, only="Held", why="I look") == 0
    assert output.getvalue() == "Held is yours: it bills; see docs/runbooks/Held.md\n"
    (payload,) = [event.payload for event in store.events() if isinstance(event.payload, AlertAcknowledged)]
    assert "@" in payload.by and payload.sentence() == f"alert Held is acknowledged by {payload.by}: I look"
    assert f"fires, by {payload.by}" in told() and told().count(" by ") == 1
    with pytest.raises(UserError, match=r"waits for no answer.*PodSilent"):
        alerts.alerts_command("train", "us-east-1", False, console, ack=True, only="Held")
    alerts.alerts_command("train", "us-east-1", False, console, ack=True)
    alerts.alerts_command("train", "us-east-1", False, console, ack=True)
    second, third = output.getvalue().splitlines()[1:]
    assert second.startswith("PodSilent is yours: it bills") and third == "no alert waits for an answer"


def test_a_test_of_an_alert_sends_what_it_would_say_by_each_route(sent: list[tuple[str, Notice]]) -> None:
    assert answered("PodSilent")[0] == 1 and [name for name, _ in sent] == ["topic", "webhook"]
    message = sent[0][1]
    assert message.is_urgent and "a test of alert PodSilent (page), nothing has happened" in message.subject
    assert "Nobody needs to act" in message.text and "bivouac_silent_seconds > 5" in message.text
    answered("DataSlow")
    assert not sent[2][1].is_urgent
