"""A page that nobody answers goes out again, by the routes of escalation, until somebody acknowledges it or it ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from infra.notices.changes import told_by
from infra.notices.fired_alerts import escalation, history
from infra.notices.history import history as notices_of
from infra.notices.outbox import Outbox
from infra.record.payloads.alerts import AlertAcknowledged, AlertEnded, AlertFired
from infra.record.payloads.stages import StageFinished
from infra.spec.notify import Change, Notify
from tests.unit.cli.test_unreadable_objects import SPEC
from tests.unit.notices.test_outbox import Way
from tests.worlds.record import MemoryRecord

AFTER = timedelta(minutes=15)
PAGER = {"parameter": "/bivouac_webhook_pager", "escalation": True}
NOTIFY = Notify.model_validate({"routes": {"pager": PAGER}, "escalate_after": "15m"})


def of_alert(name: str) -> dict[str, Any]:
    return {"alert": name, "began": f"{name} began", "labels": {"alertname": name}}


def fired(name: str, severity: str = "page") -> AlertFired:
    return AlertFired(severity=severity, summary=f"{name} it is", runbook=f"docs/runbooks/{name}.md", **of_alert(name))


class Paged(MemoryRecord):
    """A record with two routes: `topic` and `pager`."""

    def __init__(self, notify: Notify = NOTIFY) -> None:
        super().__init__()
        self.topic, self.pager, self.notify = Way(), Way(), notify

    def tell(self, minutes: float = 0, writer: str = "steward-1") -> None:
        self.time.go(minutes * 60)
        ways = {"topic": self.topic, "pager": self.pager}
        Outbox(self.store(writer), self.notify, ways, self.time.wall).tell(lambda: "1.00 USD/h")

    def subjects(self) -> list[str]:
        return [notice.subject.removeprefix("bivouac train: ") for notice in self.pager.got]


def test_a_page_is_escalated_each_time_the_span_passes_and_once_whoever_looks() -> None:
    world = Paged()
    world.store().append(fired("Held"))
    world.tell()
    assert len(world.topic.got) == 1 and not world.pager.got, "a route of escalation gets no first message"
    world.tell(14)
    assert not world.pager.got
    for minutes, writer in ((1, "steward-1"), (0, "driver-1"), (14, "steward-2"), (1, "steward-2")):
        world.tell(minutes, writer)
    assert len(world.pager.got) == 2 and len(world.topic.got) == 1
    assert world.subjects()[0].startswith("nobody has answered since 22 November 2026, 12:00 UTC: alert Held (page)")
    assert world.pager.got[0].is_urgent and "`bivouac alerts train --ack`" in world.pager.got[0].text


def test_an_answer_ends_it_and_the_next_page_waits_for_its_own() -> None:
    world = Paged()
    world.store().append(fired("Held"))
    world.tell(10)
    world.store().append(fired("PodSilent"))
    world.tell(5)
    assert "1 other page without an answer: PodSilent" in world.pager.got[-1].text
    world.store().append(AlertAcknowledged(by="ada@desk", **of_alert("Held")))
    world.tell(9)
    assert len(world.pager.got) == 1, "the second one has waited for 14 minutes"
    world.tell(1)
    assert len(world.pager.got) == 2 and "alert PodSilent (page)" in world.pager.got[-1].text
    world.store().append(AlertEnded(**of_alert("PodSilent")))
    world.tell(60)
    assert len(world.pager.got) == 2


@pytest.mark.parametrize("severity", ["ticket", "note"])
def test_nothing_but_a_page_is_escalated_and_nothing_after_the_teardown(severity: str) -> None:
    world = Paged()
    world.store().append(fired("DataSlow", severity))
    world.tell(60)
    world.store().append(fired("Held"))
    world.store().append(StageFinished(stage="teardown", seconds=1.0))
    world.tell(60)
    assert not world.pager.got


def test_without_a_route_of_escalation_all_routes_repeat_it_and_without_a_span_none() -> None:
    world = Paged(Notify(escalate_after=AFTER))
    world.store().append(fired("Held"))
    world.tell(), world.tell(15)
    assert len(world.topic.got) == len(world.pager.got) == 2
    never = Paged(Notify())
    never.store().append(fired("Held"))
    never.tell(), never.tell(600)
    assert len(never.topic.got) == 1


def test_an_alert_that_fires_anew_waits_for_a_new_answer() -> None:
    world = Paged()
    for payload in (fired("Held"), AlertAcknowledged(by="ada", **of_alert("Held")), AlertEnded(**of_alert("Held"))):
        world.store().append(payload)
    later = of_alert("Held") | {"began": "another time"}
    world.store().append(AlertFired(severity="page", summary="", runbook="", **later))
    (first, second) = history(world.store().events())
    assert first.acknowledged is not None and second.acknowledged is None
    (page,) = escalation(world.store().events(), world.time.wall() + AFTER, AFTER)
    assert page.event.payload == second.payload


def test_the_history_of_notices_has_what_was_escalated() -> None:
    world = Paged()
    world.store().append(fired("Held"))
    world.tell(), world.tell(15)
    spec = SPEC.model_copy(update={"notify": NOTIFY})
    rows = notices_of(world.store(), spec, world.time.wall())
    assert [(row.way, row.change, row.subject.partition(": ")[2][:20]) for row in rows if row.way == "pager"] == [
        ("pager", Change.ALERT, "nobody has answered ")
    ]
    event = world.store().events()[0]
    assert told_by(f"{event.writer}-{event.sequence:06d}!3", [event]) is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"routes": {"pager": PAGER}}, "gets nothing without `escalate_after`"),
        ({"escalate_after": "59s"}, "at least 1m"),
        ({"routes": {"topic": {"parameter": "/bivouac_webhook"}}}, "cannot have the name topic"),
        ({"routes": {"a.b": {"parameter": "/bivouac_webhook"}}}, "pattern"),
    ],
)
def test_a_spec_that_would_page_nobody_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Notify.model_validate(fields)
