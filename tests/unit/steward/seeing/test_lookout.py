"""One turn of the steward's look: a lost lease ends it before anything is read, and what S3 keeps back is said."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from infra.clock import Clock
from infra.errors import LeaseLost, LeaseUnproven
from infra.record.store import LIVE, STOP, CampaignStore
from infra.steward.clocks import CLOCKS, Clocks
from infra.steward.decide import Finish, History, Launch, Observation, Policy, Wait
from infra.steward.seeing import lookout
from tests.unit.steward.steward_story import config
from tests.worlds.s3 import NOON, FakeS3, Time, refusal

POLICY = Policy(
    attempts_without_progress=3, process_restarts=5, node_replacements=3, repairs_per_hour=4,
    heartbeat_timeout=timedelta(seconds=5), hang_timeout=timedelta(minutes=1), startup_timeout=timedelta(minutes=2),
    capacity_timeout=timedelta(minutes=5), budget_usd=Decimal(100), interval_and_archive=timedelta(minutes=10),
)  # fmt: skip


class Observer:
    """Sees no pods, no nodes, and what the sources say of themselves."""

    def __init__(self, *given: Any) -> None:
        self.statuses: dict[str, Any] = {}
        self.sources, self.looks = given[-1], 0
        self.clocks = Clocks.begin(0, 0.0)

    def observe(
        self, attempt: int, in_flight: bool, committed: int, stop: bool, held: Any, gang_nodes: int
    ) -> Observation:
        self.looks += 1
        return Observation(
            now=NOON, deadline=NOON + timedelta(hours=4), spent_usd=Decimal(1), usd_per_hour=Decimal(14),
            attempt=attempt, in_flight=in_flight, committed_step=committed, stop_requested=stop, held_since=held,
            unseen=self.sources.unseen(),
        )  # fmt: skip


class Turn:
    """A lookout over S3 in memory; `answers` are what the lease says, check by check, then that it is held."""

    def __init__(self) -> None:
        self.time, self.answers = Time(), list[Exception | None]()
        self.s3 = FakeS3(self.time)
        self.store = CampaignStore(self.s3, "state", "story", "w")
        lease: Any = SimpleNamespace(check=self.check)
        cluster: Any = None
        clock = Clock(self.time, self.time.wall)
        self.lookout = lookout.Lookout(config(), cluster, cluster, self.store, lease, clock)
        self.observer: Any = self.lookout.observer

    def check(self) -> None:
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error

    def look(self) -> tuple[Observation, Any]:
        return self.lookout.look(POLICY, History(), (0, False, -1), None, (), None)


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> Turn:
    monkeypatch.setattr(lookout, "Observer", Observer)
    return Turn()


LOST = LeaseLost("the steward lease is lost", seen="another took it", cure="nothing more is changed")
UNPROVEN = LeaseUnproven("not renewed", seen="503", cure="wait", delay=timedelta(seconds=1))


def test_a_lost_lease_ends_the_turn_before_anything_is_seen(turn: Turn) -> None:
    turn.answers = [LOST]
    with pytest.raises(LeaseLost, match="steward lease is lost"):
        turn.look()
    assert turn.observer.looks == 0 and not turn.s3.objects


def test_a_lease_that_is_lost_while_one_looks_forbids_to_write_what_was_seen(turn: Turn) -> None:
    turn.answers = [None, LOST]
    with pytest.raises(LeaseLost, match="steward lease is lost"):
        turn.look()
    assert turn.observer.looks == 1 and not turn.s3.objects


def test_a_lease_that_s3_does_not_prove_is_an_outage_and_nothing_is_written(turn: Turn) -> None:
    turn.answers = [UNPROVEN]
    seen, _ = turn.look()
    assert [(outage.source, "not renewed" in outage.why) for outage in seen.unseen] == [("record", True)]
    assert any("not renewed" in trouble for trouble in seen.troubles) and not turn.s3.objects
    turn.time.go(1)
    seen, _ = turn.look()
    assert seen.unseen == () and {LIVE, CLOCKS} <= {key.rpartition("/")[2] for key in turn.s3.objects}


def test_a_lease_that_is_unproven_while_one_looks_forbids_to_write_and_the_turn_goes_on(turn: Turn) -> None:
    turn.answers = [None, UNPROVEN]
    _, action = turn.look()
    assert isinstance(action, Launch) and not turn.s3.objects
    assert turn.lookout.sources.away("record")


def test_a_stop_is_read_from_the_record_and_stands_while_the_record_is_away(turn: Turn) -> None:
    seen, action = turn.look()
    assert not seen.stop_requested and isinstance(action, Launch)
    turn.store.put_json(STOP, {})
    turn.time.go(2)  # it is read as often
    seen, action = turn.look()
    assert seen.stop_requested and isinstance(action, Finish)
    turn.s3.away = refusal("InternalError", 500)
    for _ in range(3):
        turn.time.go(60)
        assert turn.look()[0].stop_requested


def test_a_record_that_was_never_read_asks_for_no_stop(turn: Turn) -> None:
    turn.s3.away = refusal("InternalError", 500)
    seen, _ = turn.look()
    assert not seen.stop_requested and [outage.source for outage in seen.unseen] == ["record"]


def test_a_mistake_of_ours_in_reading_or_writing_is_raised(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: Any) -> None:
        raise KeyError("mine")

    with monkeypatch.context() as patch:
        patch.setattr(turn.store, "put_json", mistaken)
        with pytest.raises(KeyError, match="mine"):
            turn.look()
    turn.time.go(2)
    monkeypatch.setattr(turn.store, "get_json", mistaken)
    with pytest.raises(KeyError, match="mine"):
        turn.look()


def test_why_the_nodes_were_given_back_is_part_of_what_is_seen(turn: Turn) -> None:
    assert turn.look()[0].given_back == ""
    turn.lookout.given_back = "no record for half an hour"
    seen, action = turn.look()
    assert seen.given_back == "no record for half an hour"
    assert isinstance(action, Finish) and action.why == "no record for half an hour"


def test_a_stop_is_asked_for_every_two_seconds(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list[str]()
    get = turn.store.get_json

    def get_json(name: str) -> Any:
        names.append(name)
        return get(name)

    monkeypatch.setattr(turn.store, "get_json", get_json)
    for _ in range(9):
        turn.look()
        turn.time.go(0.5)
    assert names.count(STOP) == 3


def test_figures_are_written_at_once_where_more_than_steps_is_new(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = list[str]()
    put = turn.store.put_json

    def put_json(name: str, value: Any) -> None:
        writes.append(name)
        put(name, value)

    monkeypatch.setattr(turn.store, "put_json", put_json)
    live, view = turn.lookout._live, turn.observer.observe(1, True, 20, False, None, 0)
    for loss in range(9):
        live.tell(view, Wait(why="training"), float(loss))
        turn.time.go(0.5)
    assert writes.count(LIVE) == 2, "a loss is new in each turn"
    live.tell(view.model_copy(update={"committed_step": 40}), Wait(why="training"), 9.0)
    assert writes.count(LIVE) == 3
    turn.time.go(0.1)
    live.tell(view.model_copy(update={"committed_step": 40}), Wait(why="waits"), 9.0)
    assert writes.count(LIVE) == 4
