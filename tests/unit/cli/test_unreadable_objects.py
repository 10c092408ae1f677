"""An object of the record that cannot be read costs its own line, and holds what it may have told of."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from infra.campaign import closing, report
from infra.campaign.closing import Act
from infra.checkpoints.find import TIERS, _tiers
from infra.cli.look import status
from infra.cli.look.status import facts_of
from infra.errors import NotProven
from infra.inventory.orphans import judge
from infra.inventory.stakes import refuse_unproven
from infra.notices.history import history
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.record.identity import CampaignIdentity
from infra.record.objects import Unreadable
from infra.record.payloads import payload_of
from infra.record.payloads.stages import StageStarted
from infra.record.store import LIVE, CampaignStore, live_figures
from infra.session.session import stored_deadline, stored_spec
from infra.spec.names import EXPIRES_TAG
from infra.steward.clocks import CLOCKS
from infra.steward.resume_state import history as attempts_of
from infra.steward.seeing.trainer_events import TrainerEvents
from tests.example import example_spec
from tests.worlds.s3 import FakeS3, Time

SPEC = example_spec()
PLAN = make_plan(SPEC, survey(SPEC))
DEEP = b"[" * 100_000
GARBLED = {
    "empty": b"",
    "cut short": b'{"at": "2026-11-22T12:00:0',
    "no text": b"\xff\xfe\x00garbage",
    "too deep": DEEP,
    "another thing": b"[1, 2]",
    "a number": b"7",
    "nothing in it": b"{}",
    "no number": b'{"at": "2026-11-22T12:00:00Z", "spent_usd": NaN, "step": 1e999}',
}


class Recorded:
    """A campaign that trained, ended and was archived."""

    def __init__(self) -> None:
        self.time = Time()
        self.s3 = FakeS3(self.time)
        self.store = self.again()
        self.put("spec.json", SPEC.model_dump_json())
        self.put("plan.json", PLAN.model_dump_json())
        self.put("identity.json", CampaignIdentity(identity="one").model_dump_json())
        clock = {"started_at": self.time.wall(), "deadline": self.time.wall() + timedelta(hours=8)}
        self.store.put_json("clock.json", {name: moment.isoformat() for name, moment in clock.items()})
        for stage in (Stage.PROVISION, Stage.PREFLIGHT, Stage.LAUNCH):
            self.event("stage.started", stage=stage)
            self.event("stage.finished", stage=stage, seconds=1.0, outputs={})
        self.event("attempt.launched", attempt=1, jobset="x-a1", committed_step=-1)
        self.event("attempt.running", attempt=1, nodes=["a", "b"], node_ranks=[0, 1])
        self.event("attempt.ended", attempt=1, step=80, committed_at_end=80)
        self.event("training.finished", outcome="done", why="all steps", step=80, committed_step=80)
        self.event("nodes.at-zero", group="gpu")

    def archived(self) -> None:
        self.event("archive.verified", manifest="s3://x/manifest.json", step=80, identity="one", objects=3, bytes=9)

    def again(self, writer: str = "w") -> CampaignStore:
        """Another process's view of the record."""
        return CampaignStore(self.s3, "b", SPEC.campaign, writer, now=self.time.wall)

    def event(self, kind: str, **data: Any) -> None:
        self.time.go(2)
        self.store.append(payload_of(kind, data))

    def put(self, name: str, body: str | bytes) -> None:
        self.store.put(f"{self.store.prefix}/{name}", body if isinstance(body, bytes) else body.encode())


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def shown(recorded: Recorded) -> str:
    facts, state = facts_of(recorded.again())
    facts["notices"] = history(recorded.again(), SPEC, recorded.time.wall())
    stream = io.StringIO()
    status._show(facts, state, False, Console(file=stream, width=300))
    return stream.getvalue()


def owner(recorded: Recorded) -> Any:
    expired = SimpleNamespace(tags={EXPIRES_TAG: "2020-01-01T00:00:00+00:00"})
    keeper: Any = SimpleNamespace(account=None, archive="a")
    return judge(keeper, recorded.again(), "one", [expired], recorded.time.wall())  # type: ignore[list-item]


@pytest.mark.parametrize("body", GARBLED.values(), ids=GARBLED)
def test_a_garbled_event_is_said_and_everybody_goes_on(recorded: Recorded, body: bytes, tmp_path: Path) -> None:
    recorded.archived()
    key = f"{recorded.store.prefix}/events/other/000004.json"
    recorded.s3.put_object(Bucket="b", Key=key, Body=body)
    text = shown(recorded)
    assert f"1 object of the record cannot be read: {key}: " in text and "(step 80)" in text
    made, written = report.write(recorded.again(), tmp_path, lambda _: None)
    assert any(key in notice.text for notice in made.notices) and key in Path(written["html"]).read_text()
    state = recorded.again().state()
    assert state.unreadable == 1 and len(state.attempts) == 1 and attempts_of(state).attempts == ()
    assert TrainerEvents(recorded.again()).loss is None


DATA = {
    "a launch of nothing": ("attempt.launched", "{}"),
    "a launch of a word": ("attempt.launched", '{"attempt": "one"}'),
    "an end at no step": ("attempt.ended", '{"attempt": 1, "committed_at_end": "80"}'),
    "a stage that is none": ("stage.started", '{"stage": "dance"}'),
    "nodes that are none": ("pilot.begun", '{"nodes": "x", "of": []}'),
    "a count that is none": ("nodes.counted", '{"nodes": "much", "of": 8}'),
    "a count of none": ("nodes.counted", '{"nodes": 1, "of": 0}'),
    "a version that is none": ("relaunched", '{"version": {}}'),
    "data that are none": ("attempt.launched", "7"),
}


@pytest.mark.parametrize(("kind", "data"), DATA.values(), ids=DATA)
def test_an_event_whose_data_do_not_fit_its_kind_is_an_unreadable_one(recorded: Recorded, kind: str, data: str) -> None:
    body = f'{{"at": "2026-11-22T12:09:00Z", "writer": "z", "sequence": 0, "kind": "{kind}", "data": {data}}}'
    recorded.put("events/z/000000.json", body)
    assert [event.kind for event in recorded.again().events()].count("record.unreadable") == 1
    assert "cannot be read" in shown(recorded)


def test_a_kind_of_a_later_version_is_no_damage(recorded: Recorded) -> None:
    body = b'{"at": "2026-11-22T12:09:00Z", "writer": "z", "sequence": 0, "kind": "later.kind-of", "data": {"a": 1}}'
    recorded.put("events/z/000000.json", body)
    assert recorded.again().state() == recorded.store.state() and recorded.again().unread_objects() == {}


def test_an_unreadable_object_may_be_a_launch_so_only_an_archive_after_it_proves_an_end(
    recorded: Recorded,
) -> None:
    identity = CampaignIdentity(identity="one")
    recorded.archived()
    refuse_unproven(recorded.again().state(), SPEC.campaign, identity)
    recorded.time.go(2)
    recorded.put("events/other/000000.json", b"garbled")
    state = recorded.again().state()
    assert state.doubted and not state.settled and not state.nothing_to_lose
    with pytest.raises(NotProven, match="1 object of its record cannot be read"):
        refuse_unproven(state, SPEC.campaign, identity)
    assert owner(recorded).over and "cannot be read" in owner(recorded).holds
    verdict = closing.judge(closing.look(recorded.again(), recorded.time.wall()))
    assert verdict == (Act.LEAVE, "is not archived, and waits for a person")
    recorded.time.go(2)
    recorded.archived()
    refuse_unproven(recorded.again().state(), SPEC.campaign, identity)
    assert recorded.again().state().settled and owner(recorded).holds == ""


def test_a_campaign_that_never_launched_may_have_where_an_event_cannot_be_read() -> None:
    time = Time()
    store = CampaignStore(FakeS3(time), "b", "c", "w", now=time.wall)
    store.append(StageStarted(stage=Stage.PROVISION))
    assert store.state().nothing_to_lose
    store.put("campaigns/c/events/steward/000000.json", b"\0")
    assert not CampaignStore(store.s3, "b", "c", "x").state().nothing_to_lose


def test_a_person_gives_up_what_cannot_be_read_and_only_what_came_before(recorded: Recorded) -> None:
    recorded.put("events/other/000000.json", b"garbled")
    recorded.event("abandoned", who="ada")
    refuse_unproven(recorded.again().state(), SPEC.campaign, None)
    recorded.time.go(2)
    recorded.put("events/other/000001.json", b"garbled")
    with pytest.raises(NotProven):
        refuse_unproven(recorded.again().state(), SPEC.campaign, None)


def test_an_event_that_is_mended_counts_at_once(recorded: Recorded) -> None:
    reader = recorded.again()
    recorded.put("events/other/000000.json", b"garbled")
    assert reader.state().unreadable == 1
    del recorded.s3.objects[f"{reader.prefix}/events/other/000000.json"]
    assert reader.state().unreadable == 0


NAMES = ("plan.json", "clock.json", LIVE, "certificate.json", "site.json", CLOCKS, TIERS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("body", GARBLED.values(), ids=GARBLED)
def test_no_garbled_object_of_the_record_ends_a_look(
    recorded: Recorded, name: str, body: bytes, tmp_path: Path
) -> None:
    recorded.archived()
    recorded.put(name, body)
    assert "(step 80)" in shown(recorded)
    report.write(recorded.again(), tmp_path, lambda _: None)
    closing.judge(closing.look(recorded.again(), recorded.time.wall()))
    assert stored_deadline(recorded.again()) is not None and _tiers(recorded.again()) == ()
    assert owner(recorded).holds == "" and live_figures(recorded.again()) is None
    if name in ("plan.json", LIVE):
        assert f"cannot be read: {recorded.store.prefix}/{name}: " in shown(recorded)


def test_a_spec_that_cannot_be_read_is_named_with_its_key(recorded: Recorded) -> None:
    recorded.put("spec.json", b"{")
    with pytest.raises(Unreadable, match=r"spec\.json: .*aws s3api list-object-versions"):
        stored_spec(recorded.again())


def test_a_campaign_whose_identity_cannot_be_read_is_left_alone(recorded: Recorded) -> None:
    recorded.put("identity.json", b"{")
    assert not owner(recorded).over and "identity.json" in owner(recorded).why


@pytest.mark.parametrize("body", GARBLED.values(), ids=GARBLED)
def test_a_lease_that_cannot_be_read_may_be_somebodys(recorded: Recorded, body: bytes) -> None:
    recorded.put("leases/driver.json", body)
    found = recorded.again().lease("driver", timedelta(seconds=30)).current()
    assert found is not None and found.living and "lease that cannot be read" in shown(recorded)
    assert not owner(recorded).over
    recorded.time.go(3700)
    assert owner(recorded).over
