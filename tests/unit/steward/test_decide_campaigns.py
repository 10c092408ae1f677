"""Whole campaigns of drawn faults against the decider: what it never does, and that it always ends.

The world here is a few lines of arithmetic of its own: time and money pass in turns, an attempt commits or fails as
drawn, and a replaced node comes back. It shares no code with what it judges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.cluster.cloud_notice import CloudNotice
from infra.steward.decide import (
    Action,
    Attempt,
    EndAttempt,
    FailureClass,
    Finish,
    History,
    Hold,
    Launch,
    Observation,
    Replace,
    Wait,
    decide,
)
from infra.steward.seeing.views import Unseen
from tests.unit.steward.test_decide import NOW, POLICY, node, pod, seen
from trainer.contract import ExitCode

RESERVE = timedelta(minutes=4)
LIMITS = POLICY.model_copy(
    update={"archive": RESERVE, "interval_and_archive": timedelta(minutes=10), "hold_for": timedelta(minutes=20),
            "on_stop": "hold", "budget_usd": Decimal(30)}
)  # fmt: skip
RATE = Decimal(12)
TURN = timedelta(minutes=3)
MOST_TURNS = 400
FAULTS = (
    "none",
    "commits",
    "process",
    "storage",
    "user",
    "sick",
    "dead",
    "two dead",
    "hang",
    "announced",
    "declines",
    "record away",
)
ENDS = {"process": 70, "storage": ExitCode.STORAGE, "user": ExitCode.USER, "sick": ExitCode.SICK}


@dataclass
class DrawnCampaign:
    """A campaign by a steward's actions and the drawn faults."""

    now: datetime = NOW
    spent: Decimal = Decimal(0)
    attempt: int = 0
    in_flight: bool = False
    committed: int = -1
    committed_at_launch: int = -1
    held_since: datetime | None = None
    past: list[Attempt] = field(default_factory=list)
    repairs: list[datetime] = field(default_factory=list)
    launches_without_progress: int = 0

    def history(self) -> History:
        return History(attempts=tuple(self.past), repairs=tuple(self.repairs))

    def view(self, fault: str) -> Observation:
        changes: dict[str, Any] = {}
        dead = {"dead": (1,), "two dead": (0, 1)}.get(fault, ())
        silent = {index: timedelta(minutes=1) for index in dead}
        pods = [pod(index, silent_for=silent.get(index, timedelta())) for index in range(2)]
        if fault in ENDS:
            pods[1] = pod(1, phase="Failed", exit_code=ENDS[fault], ended_at=self.now)
        due = CloudNotice(code="instance-stop", due=self.now + timedelta(minutes=2))
        nodes = [
            node(
                index,
                ready=None if index in dead else True,
                cloud_notice=due if fault == "announced" else None,
                decline="heat" if fault == "declines" and index == 0 else "",
            )
            for index in range(2)
        ]
        if fault == "declines":
            changes["notice_steps"] = {"i-0": self.committed_at_launch}
        if fault == "hang":
            changes["since_step"] = 2 * LIMITS.hang_timeout
        if fault == "record away":
            changes["unseen"] = (Unseen(source="record", lasts=timedelta(minutes=1), why="503"),)
        return seen(
            now=self.now, deadline=NOW + timedelta(hours=5), spent_usd=self.spent, usd_per_hour=RATE,
            attempt=self.attempt, in_flight=self.in_flight, pods=tuple(pods) if self.in_flight else (),
            nodes=tuple(nodes), committed_step=self.committed, held_since=self.held_since, **changes,
        )  # fmt: skip

    def apply(self, action: Action) -> None:
        match action:
            case Launch(attempt=number):
                self.attempt, self.in_flight, self.committed_at_launch = number, True, self.committed
                self.launches_without_progress += 1
            case EndAttempt(failure=failure, dead_nodes=dead):
                self.in_flight = False
                self.past.append(
                    Attempt(
                        number=self.attempt, failure=failure, ended_at=self.now, dead_nodes=dead,
                        committed_at_launch=self.committed_at_launch, committed_at_end=self.committed,
                        instances=dict.fromkeys(dead, "i-of-the-dead"),
                    )
                )  # fmt: skip
            case Replace(nodes=nodes):
                self.repairs += [self.now] * len(nodes)
            case Hold():
                self.held_since = self.now

    def pass_time(self, fault: str) -> None:
        self.now += TURN
        self.spent += RATE * Decimal(TURN.total_seconds()) / 3600
        if self.in_flight and fault == "commits":
            self.committed += 10
            self.launches_without_progress = 0


@settings(max_examples=60)
@given(st.lists(st.sampled_from(FAULTS), max_size=60))
def test_every_campaign_ends_within_its_limits(faults: list[str]) -> None:
    campaign = DrawnCampaign()
    for turn in range(MOST_TURNS):
        fault = faults[turn] if turn < len(faults) else "none"
        view = campaign.view(fault)
        action = decide(view, LIMITS, campaign.history())
        if view.unseen:
            assert isinstance(action, Wait), "nothing is touched while the record is away for a minute"
        if isinstance(action, Launch):
            reserve_usd = RATE * Decimal(LIMITS.interval_and_archive.total_seconds()) / 3600
            assert campaign.spent + reserve_usd <= LIMITS.budget_usd, "no launch into the archive's reserve"
        if isinstance(action, Finish):
            break
        campaign.apply(action)
        assert campaign.launches_without_progress <= LIMITS.attempts_without_progress
        campaign.pass_time(fault)
    else:
        raise AssertionError("it does not end")
    turn_usd, archive_usd = (RATE * Decimal(span.total_seconds()) / 3600 for span in (TURN, RESERVE))
    assert campaign.spent - turn_usd + archive_usd <= LIMITS.budget_usd, "it is seen a turn late at most"
    assert view.now + RESERVE <= view.deadline + TURN


ELASTIC = LIMITS.model_copy(
    update={"gang_sizes": (3, 2), "spare_timeout": timedelta(minutes=6), "capacity_timeout": timedelta(minutes=30),
            "node_replacements": 20, "repairs_per_hour": 20, "process_restarts": 4}
)  # fmt: skip
WHOLE, FEWEST = 4, 2
LOSS = ("loses a node", "none", "none", "none", "none", "none")
RETURN = ("a node comes", "commits", "commits", "commits")
SPELLS = (LOSS, RETURN, (*LOSS, *RETURN), ("commits", "process"), ("a node comes",), ("loses a node", "commits"))
"""Turns that follow each other: drawn one by one, a smaller gang would seldom last until it loses another node."""
DEADLINE = timedelta(hours=12)


@dataclass
class ElasticCampaign:
    """A gang of four nodes that may train with three or two; nodes die, and successors come, as drawn."""

    now: datetime = NOW
    nodes: list[int] = field(default_factory=lambda: list(range(WHOLE)))
    made: int = WHOLE
    attempt: int = 0
    gang: list[int] = field(default_factory=list)
    """Nodes of the attempt in flight; empty between attempts."""
    dead: int | None = None
    committed: int = -1
    committed_at_launch: int = -1
    room_step: int | None = None
    short_since: datetime | None = None
    past: list[Attempt] = field(default_factory=list)

    @property
    def in_flight(self) -> bool:
        return bool(self.gang)

    def view(self, turn: str) -> Observation:
        pods = [pod(index, node=f"node-{name}") for index, name in enumerate(self.gang)]
        if turn == "loses a node" and self.gang:
            self.dead = self.gang[-1]
            pods[-1] = pod(len(pods) - 1, node=f"node-{self.dead}", silent_for=timedelta(minutes=1))
        if turn == "process" and self.gang:
            pods[0] = pod(0, node=f"node-{self.gang[0]}", phase="Failed", exit_code=70, ended_at=self.now)
        fit = len(self.nodes) - (self.dead is not None)
        self.short_since = None if fit >= WHOLE else self.short_since or self.now
        has_room = self.in_flight and len(self.gang) < min(fit, WHOLE)
        self.room_step = None if not has_room else self.committed if self.room_step is None else self.room_step
        return seen(
            now=self.now, deadline=NOW + DEADLINE, spent_usd=Decimal(0), usd_per_hour=Decimal(0), attempt=self.attempt,
            in_flight=self.in_flight, pods=tuple(pods), committed_step=self.committed, nodes_wanted=WHOLE,
            gang_nodes=len(self.gang) if len(self.gang) < WHOLE else 0, room_step=self.room_step,
            nodes=tuple(node(name, ready=None if name == self.dead else True) for name in self.nodes),
            since_short=None if self.short_since is None else self.now - self.short_since,
        )  # fmt: skip

    def apply(self, action: Action) -> None:
        match action:
            case Launch(attempt=number, nodes=nodes):
                self.attempt, self.gang = number, self.nodes[: nodes or WHOLE]
                self.committed_at_launch = self.committed
            case EndAttempt(failure=failure, dead_nodes=dead, grows_to=size):
                self.past.append(
                    Attempt(
                        number=self.attempt, failure=failure, ended_at=self.now, dead_nodes=dead, grows_to=size,
                        committed_at_launch=self.committed_at_launch, committed_at_end=self.committed,
                        nodes=len(self.gang) if len(self.gang) < WHOLE else 0,
                    )
                )  # fmt: skip
                self.gang, self.room_step = [], None
            case Replace(nodes=names):
                self.nodes = [name for name in self.nodes if f"node-{name}" not in names]
                self.dead = None

    def pass_time(self, turn: str) -> None:
        self.now += TURN
        self.committed += 10 * (self.in_flight and turn == "commits")
        if turn == "a node comes" and len(self.nodes) < WHOLE:
            self.nodes.append(self.made)
            self.made += 1


@settings(max_examples=40)
@given(st.lists(st.sampled_from(SPELLS), max_size=25))
def test_a_gang_that_may_be_smaller_never_flaps_nor_ends_for_nodes_it_does_not_need(
    spells: list[tuple[str, ...]],
) -> None:
    turns = [turn for spell in spells for turn in spell]
    campaign, grown = ElasticCampaign(), list[datetime]()
    for number in range(MOST_TURNS * 2):
        turn = turns[number] if number < len(turns) else "commits"
        view = campaign.view(turn)
        action = decide(view, ELASTIC, History(attempts=tuple(campaign.past)))
        fit = sum(one.ready is True for one in view.nodes)
        match action:
            case Launch(nodes=nodes):
                size = nodes or WHOLE
                assert FEWEST <= size <= fit, "never below the minimum, nor beyond the nodes that are there"
                last = campaign.past[-1] if campaign.past else None
                same = last is not None and 0 < last.nodes <= size
                waited = view.since_short or timedelta()
                assert size == WHOLE or same or waited > ELASTIC.spare_timeout, "a successor has its time to come"
                assert size == min(fit, WHOLE), "no node stays idle that the gang could have"
            case EndAttempt(grows_to=size) if size:
                assert len(campaign.gang) < size <= fit
                assert not grown or view.now - grown[-1] >= timedelta(hours=1), "once an hour at most"
                assert campaign.committed > campaign.committed_at_launch, "only what is committed is left"
                grown.append(view.now)
            case Finish(why=why) if "no capacity" in why:
                assert fit < FEWEST, why
            case Finish(why=why):
                assert "restarts within" in why or "newer checkpoint" in why or "deadline" in why, why
        if isinstance(action, Finish):
            break
        campaign.apply(action)
        campaign.pass_time(turn)
    else:
        raise AssertionError("it does not end")


def test_growing_counts_against_no_limit_of_restarts() -> None:
    grown = [
        Attempt(number=number, failure=FailureClass.INTERRUPTED, ended_at=NOW, committed_at_launch=number,
                committed_at_end=number + 1, nodes=2, grows_to=4)
        for number in range(1, 9)
    ]  # fmt: skip
    view = seen(in_flight=False, pods=(), attempt=8)
    assert isinstance(decide(view, ELASTIC, History(attempts=tuple(grown))), Launch)
    ended = tuple(attempt.model_copy(update={"grows_to": 0}) for attempt in grown)
    assert isinstance(decide(view, ELASTIC, History(attempts=ended)), Finish)


known = st.sampled_from([True, None])
silences = st.one_of(st.none(), st.integers(0, 10**6).map(lambda seconds: timedelta(seconds=seconds)))


@settings(max_examples=100)
@given(st.tuples(known, known), st.sampled_from(["running", "unknown"]), st.integers(0, 60))
def test_nodes_of_which_nothing_is_known_end_no_gang_whose_pods_answer(
    ready: tuple[bool | None, bool | None], state: str, since_s: int
) -> None:
    nodes = tuple(node(index, ready=one, instance_state=state) for index, one in enumerate(ready))
    assert isinstance(decide(seen(nodes=nodes, since_step=timedelta(seconds=since_s)), POLICY, History()), Wait)


@settings(max_examples=100)
@given(st.tuples(silences, silences))
def test_pods_of_which_nothing_is_heard_end_no_gang_whose_nodes_are_well(
    quiet: tuple[timedelta | None, timedelta | None],
) -> None:
    pods = tuple(pod(index, silent_for=one) for index, one in enumerate(quiet))
    assert isinstance(decide(seen(pods=pods), POLICY, History()), Wait)
