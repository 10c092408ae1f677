"""Whoever tells what a campaign has cost tells the same: `status`, `list`, steward, closer, report and certificate,
also after the driver's clock was set back by 20 minutes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign import closing, report
from infra.cli.look import list as listing
from infra.cli.look.status import facts_of
from infra.inventory import Knowledge, certify
from infra.record.events import Event, Stage
from infra.record.store import CampaignStore
from infra.report.build import build
from infra.session.session import stored_plan
from infra.spec.names import Names
from infra.steward.seeing.lookout import Lookout
from tests.unit.inventory.test_certificate import Clock, looks
from tests.unit.report.campaign_story import BEGUN, whole
from tests.unit.report.test_report_sums import PLAN, SPEC
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time

Told = dict[str, Decimal]
"""Who tells it -> USD."""
BACK = timedelta(minutes=20)
TORN_DOWN_S = 188.0
"""When the story's teardown has ended; nothing bills after it, so that no figure depends on when it is asked."""


def straight(event: Event, beginning: datetime) -> Event:
    return event


def set_back(event: Event, beginning: datetime) -> Event:
    """The driver's clock goes back once it has asked for GPU nodes."""
    late = event.writer == "driver" and event.at > beginning
    return event.model_copy(update={"at": event.at - BACK}) if late else event


@pytest.fixture(params=[straight, set_back])
def store(request: pytest.FixtureRequest) -> CampaignStore:
    """The record of a whole campaign up to the end of its teardown."""
    clock: Callable[[Event, datetime], Event] = request.param
    events = [event for event in whole().events if event.at <= BEGUN + timedelta(seconds=TORN_DOWN_S)]
    (preflight,) = (
        event.at for event in events if event.data.get("stage") == Stage.PREFLIGHT and "started" in event.kind
    )
    s3 = FakeS3(Time())
    store = CampaignStore(s3, "state", SPEC.campaign, "reader")
    store.put_json("spec.json", SPEC.model_dump(mode="json"))
    store.put_json("plan.json", PLAN.model_dump(mode="json"))
    for event in events:
        body = clock(event, preflight).model_dump_json().encode()
        store.put(f"{store.prefix}/events/{event.writer}/{event.sequence:06}.json", body)
    return store


def told(store: CampaignStore, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Told:
    plan, now = stored_plan(store, SPEC), datetime.now(UTC)
    status = facts_of(store)[0]
    record = report.read(store)
    page = build(record).money
    (folder / "record.json.gz").write_bytes(record.packed())
    kept = listing._kept_status(folder / "record.json.gz")
    steward_clock: Any = SimpleNamespace(now=lambda: now, monotonic=lambda: 0.0)
    config: Any = SimpleNamespace(
        lines=plan.cost, spec=SPEC, steps=110, interval_and_archive=timedelta(), ranks_per_node=1
    )
    nobody: Any = None
    Clock(monkeypatch)
    looks(monkeypatch, volume=list)
    monkeypatch.setattr(certify, "stays_on_purpose", lambda context: ())
    # The story's outputs name no resource.
    monkeypatch.setattr(certify, "knowledge", lambda store, names: Knowledge(names))
    names = Names(SPEC)
    context: Any = SimpleNamespace(
        account=SimpleNamespace(region=SPEC.region), names=names, operator_arn="arn:me", spec=SPEC, plan=plan,
        store=store, results=folder, turns=lambda seconds: iter([None]), progress=SilentProgress(),
    )  # fmt: skip
    certify.run(context)
    certificate = json.loads((folder / certify.CERTIFICATE).read_text())
    assert kept is not None
    return {
        "status": Decimal(str(status["spent_usd"])),
        "the parts of status": Decimal(str(status["metered_usd"])) + Decimal(str(status["estimated_usd"])),
        "list, of a kept record": Decimal(str(kept["spent_usd"])),
        "steward": Lookout(config, nobody, nobody, store, nobody, steward_clock).observer.spent_usd,
        "closer": closing.spent_usd(store, plan, now),
        "report": page.total_usd,
        "certificate": Decimal(certificate["metered_usd"]) + Decimal(certificate["estimated_usd"]),
    }


def test_all_who_tell_it_tell_one_figure(store: CampaignStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures = told(store, monkeypatch, tmp_path)
    # Two parts, each rounded to a cent by the certificate.
    assert max(figures.values()) - min(figures.values()) <= Decimal("0.01"), figures
    assert Decimal("0.50") < figures["status"] < Decimal("5.00"), figures
