"""A teardown without an engine: in which order, how long it tries, and what it says of what stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.campaign import teardown
from infra.engine.failures import EngineFailed, Failure
from infra.errors import LeaseLost, NotProven, PermanentError, UserError
from infra.kinds import Remain
from infra.record.events import CampaignState, Kind, Stage
from infra.spec.names import Names
from tests.unit.fake_s3 import refusal

TRAINED = CampaignState(begun_with=Stage.CHECK, attempts=({"attempt": 1, "committed_step": -1},))
NOTHING_TOLD = CampaignState()
NEVER_LAUNCHED = CampaignState(begun_with=Stage.CHECK)
SUBNET, GROUP = (
    f"urn:pulumi:train::bivouac::{kind}::gpu" for kind in ("aws:ec2/subnet:Subnet", "aws:eks/nodeGroup:NodeGroup")
)
HELD = "DependencyViolation: it has dependencies"
THROTTLED = "Throttling: Rate exceeded"
DENIED = "AccessDenied: you may not"
EXPIRED = "ExpiredToken: renew it"


def failed(*words: str, urn: str = SUBNET) -> EngineFailed:
    return EngineFailed("pulumi destroy", "train", tuple(Failure(urn, one) for one in words), "words")


class World:
    """What a teardown calls, by a virtual clock. `tries`: what each destroy ends with; the last stands for the rest."""

    def __init__(self, patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.now, self.did, self.notes, self.steps = 0.0, list[str](), list[str](), list[str]()
        self.recorded, self.state_now = list[Kind](), NEVER_LAUNCHED
        self.tries: list[Exception | None] = [None]
        self.held = [7]
        """Resources in the stack before each try; the last stands for the rest."""
        self.paused = list[float]()
        self.may_hold, self.lost_after = False, 10**6
        self.builders: list[list[str]] = [[]]
        self.left: tuple[str, ...] = ()
        self.sights: list[tuple[str, ...]] = [()]
        self.rows: tuple[Remain, ...] = ()
        self.frozen = set[str]()
        self.bill: str | None = None
        self.watch = SimpleNamespace(open={})
        self.store = SimpleNamespace(append=lambda kind, **_: self.recorded.append(kind), prefix="campaigns/train")
        self.progress = SimpleNamespace(note=self.notes.append, step=self.steps.append)
        money = SimpleNamespace(freeze_roles=("trainers", "builders"))
        self.spec = SimpleNamespace(campaign="train", account="123456789012", region="us-east-1", money=money)
        self.account = SimpleNamespace(client=lambda service: {"iam": self}[service], region="us-east-1")
        self.names, self.results, self.operator_arn = Names("train"), tmp_path, "arn:me"
        self.exceptions = SimpleNamespace(NoSuchEntityException=type("NoSuchEntityException", (ClientError,), {}))
        patch.setattr(teardown, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(teardown, "read_identity", lambda store: None)
        patch.setattr(teardown, "may_hold_checkpoints", lambda account, campaign: self.may_hold)
        patch.setattr(teardown, "end_builders", lambda *_: self.did.append("builders") or self.builders[0])
        patch.setattr(teardown, "living_builders", lambda *_: self._next(self.builders))
        patch.setattr(teardown, "Engine", lambda context, work: self)
        patch.setattr(teardown, "campaign_settings", self._settings)
        patch.setattr(teardown, "forget_kubernetes", lambda context, deployment: self.did.append("forget"))
        patch.setattr(teardown, "remove_left", lambda context: self.did.append("sweep") or self.left)
        patch.setattr(teardown, "bills_on", lambda context: self.bill)
        patch.setattr(teardown, "remains", lambda account, names: self.rows)
        patch.setattr(teardown, "end_instances", lambda context: self.did.append("end instances"))
        patch.setattr(teardown.certify, "knowledge", lambda store, names: "known")
        patch.setattr(teardown.certify, "look_through", self._look_through)

    @staticmethod
    def _next(several: list[Any]) -> Any:
        return several.pop(0) if len(several) > 1 else several[0]

    def _settings(self, context: Any, digest: str) -> Any:
        self.digest = digest
        return SimpleNamespace(to_config=lambda: {})

    def _look_through(self, account: Any, names: Any, principal: str, owner: str, kept: Any, known: Any) -> Any:
        assert (principal, owner, known) == ("arn:me", "123456789012", "known")
        self.did.append("look")
        return SimpleNamespace(certain=self._next(self.sights))

    def state(self) -> CampaignState:
        return self.state_now

    def guard(self) -> None:
        self.did.append("guard")
        if self.did.count("guard") > self.lost_after:
            raise LeaseLost("another driver", seen="it", cure="wait")

    def turns(self, seconds: float, interval: float = 0.5) -> Iterator[None]:
        self.paused.append(seconds)
        until = self.now + seconds
        while self.now < until:
            yield
            self.now += interval
        yield

    # The engine

    def stack(self, name: str, config: Any) -> str:
        assert name == self.names.stack
        return name

    def amend(self, stack: str, change: Any) -> None:
        change({})

    def resources(self, stack: str) -> int:
        return int(self._next(self.held))

    def destroy(self, stack: str) -> None:
        self.did.append("destroy")
        if (error := self._next(self.tries)) is not None:
            raise error

    # IAM

    def detach_role_policy(self, *, RoleName: str, PolicyArn: str) -> None:
        assert PolicyArn == "arn:aws:iam::123456789012:policy/bivouac_freeze_us-east-1"
        if RoleName not in self.frozen:
            raise self.exceptions.NoSuchEntityException({"Error": {"Code": "NoSuchEntity"}}, "DetachRolePolicy")
        self.did.append(f"thaw {RoleName}")

    def run(self, abandon: bool = False) -> dict[str, Any]:
        more = {"abandon": True} if abandon else {}
        return teardown.run(self, **more)  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


# --- what it may begin with ---


def test_nothing_is_touched_while_what_was_trained_is_not_archived(world: World) -> None:
    world.state_now = TRAINED
    with pytest.raises(NotProven, match="--abandon"):
        world.run()
    assert not world.did and not world.recorded


def test_what_is_given_up_is_recorded_before_anything_goes(world: World) -> None:
    world.state_now = TRAINED
    assert world.run(abandon=True)["resources"] == 7
    assert world.recorded == [Kind.ABANDONED]


def test_what_is_archived_is_not_recorded_as_given_up(world: World) -> None:
    world.run(abandon=True)
    assert not world.recorded


def test_a_damaged_identity_is_nothing_that_a_person_gives_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(store: Any) -> None:
        raise ValueError("no identity")

    monkeypatch.setattr(teardown, "read_identity", damaged)
    with pytest.raises(ValueError, match="no identity"):
        world.run(abandon=True)
    assert not world.did and not world.recorded


@pytest.mark.parametrize("may_hold", [True, False])
def test_a_record_that_tells_nothing_ends_a_campaign_only_where_nothing_may_hold_checkpoints(
    world: World, may_hold: bool
) -> None:
    world.state_now, world.may_hold = NOTHING_TOLD, may_hold
    if may_hold:
        with pytest.raises(NotProven):
            world.run()
        assert not world.did
    else:
        assert world.run()["resources"] == 7 and not world.recorded


def test_a_record_that_tells_of_training_is_no_less_held_for_an_account_without_stores(world: World) -> None:
    world.state_now, world.may_hold = TRAINED, False
    with pytest.raises(NotProven):
        world.run()


# --- the order of things ---


def test_builders_and_freezes_end_before_the_stack_and_what_it_did_not_know_is_swept_after_it(world: World) -> None:
    world.left, world.frozen = ("volume vol-1",), {"trainers", "builders"}
    assert world.run() == {"resources": 7, "swept": ["volume vol-1"]}
    told = [one for one in world.did if one != "guard"]
    assert told == ["builders", "thaw trainers", "thaw builders", "forget", "destroy", "sweep"]
    assert any("volume vol-1" in one for one in world.notes) and "7 resources destroyed" in world.notes
    assert sum("may buy again" in one for one in world.notes) == 2


def test_a_role_that_was_not_frozen_keeps_nobody_from_the_next(world: World) -> None:
    world.frozen = {"builders"}
    world.run()
    assert not any("swept" in one for one in world.notes), "nothing was"
    assert "thaw builders" in world.did and sum("may buy again" in one for one in world.notes) == 1


def test_a_freeze_that_may_not_be_lifted_is_told(world: World) -> None:
    def denied(**_: str) -> None:
        raise refusal("AccessDenied", 403, "DetachRolePolicy")

    world.detach_role_policy = denied  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="AccessDenied"):
        world.run()
    assert "destroy" not in world.did


@pytest.mark.parametrize("after", [0, 1, 2])
def test_who_lost_the_lease_ends_no_builder_and_thaws_no_role(world: World, after: int) -> None:
    world.lost_after, world.frozen = after, {"trainers", "builders"}
    with pytest.raises(LeaseLost):
        world.run()
    assert [one for one in world.did if one != "guard"] == ["builders", "thaw trainers"][:after]


def test_a_reservation_that_bills_on_is_said(world: World) -> None:
    world.run()
    assert not any("reservation" in one for one in world.notes)
    world.bill = "the reservation cr-1 bills on"
    world.run()
    assert world.notes[-1] == world.bill


@pytest.mark.parametrize("provisioned", [True, False])
def test_the_stack_is_opened_with_the_data_that_provision_recorded(world: World, provisioned: bool) -> None:
    finished = {Stage.PROVISION: {"data_digest": "5b"}} if provisioned else {}
    world.state_now = NEVER_LAUNCHED.model_copy(update={"finished_stages": finished})
    world.run()
    assert world.digest == ("5b" if provisioned else "0" * 64)


def test_builders_are_waited_for(world: World) -> None:
    world.builders = [["i-1"], ["i-1"], ["i-1"], []]
    world.run()
    assert world.now == 1.5 and world.steps[:3] == ["builder i-1 is terminating"] * 3 and "destroy" in world.did


def test_a_builder_that_never_ends_is_told_after_ten_minutes(world: World) -> None:
    world.builders = [["i-1"]]
    with pytest.raises(PermanentError, match=r"a builder does not terminate.*i-1 after 600 s"):
        world.run()
    assert world.now == 600 and "destroy" not in world.did


# --- how long it tries ---


def test_what_may_pass_is_tried_again_after_pauses_that_double_up_to_a_minute(world: World) -> None:
    world.tries, world.held = [failed(THROTTLED)] * 7 + [None], [7, 9, 6, 6, 6, 6, 5, 1]
    assert world.run()["resources"] == 9, "as many as there ever were"
    assert world.paused == [2, 4, 8, 16, 32, 60, 60] and world.did.count("destroy") == 8
    assert world.steps[0].startswith("another try in a moment: Subnet gpu: Throttling")


def test_each_try_forgets_the_cluster_anew(world: World) -> None:
    """It may be gone since the last one."""
    world.tries = [failed(THROTTLED), None]
    world.run()
    assert world.did.count("forget") == 2


def test_three_tries_in_a_row_that_removed_nothing_are_enough(world: World) -> None:
    world.tries, world.held = [failed(HELD)], [9, 8, 8, 7, 7, 7, 7]
    with pytest.raises(PermanentError, match="is not torn down"):
        world.run()
    assert world.did.count("destroy") == 7, "two that were the same did not count before something went"


UNAVAILABLE = "ServiceUnavailable: try later"


@pytest.mark.parametrize("words", [(THROTTLED,), (UNAVAILABLE,), (THROTTLED, UNAVAILABLE)])
def test_what_aws_only_throttles_or_fails_is_tried_for_a_quarter_of_an_hour(
    world: World, words: tuple[str, ...]
) -> None:
    world.tries = [failed(*words)]
    with pytest.raises(PermanentError):
        world.run()
    assert 900 < world.now < 1000 and world.did.count("destroy") > 10


@pytest.mark.parametrize("held", [7, 0])
def test_a_throttled_try_beside_a_held_thing_counts_as_futile(world: World, held: int) -> None:
    world.tries, world.held = [failed(THROTTLED, HELD)], [held]
    with pytest.raises(PermanentError):
        world.run()
    assert world.did.count("destroy") == 4


@pytest.mark.parametrize(("seconds", "tries"), [(600, 2), (899.5, 2), (900.5, 1)])
def test_no_try_begins_after_a_quarter_of_an_hour(world: World, seconds: float, tries: int) -> None:
    destroy = world.destroy

    def slow(stack: str) -> None:
        world.now += seconds
        destroy(stack)

    world.destroy = slow  # type: ignore[method-assign]
    world.tries = [failed(THROTTLED)]
    with pytest.raises(PermanentError):
        world.run()
    assert world.did.count("destroy") == tries


@pytest.mark.parametrize("words", [DENIED, "something that nobody ever heard of"])
def test_what_will_not_pass_is_told_at_once(world: World, words: str) -> None:
    world.tries = [failed(words)]
    with pytest.raises(PermanentError) as told:
        world.run()
    assert world.did.count("destroy") == 1 and not world.paused
    assert words in str(told.value) and "then `bivouac down train` continues" in str(told.value)


def test_something_denied_beside_something_held_is_tried_again(world: World) -> None:
    world.tries = [failed(DENIED, HELD), None]
    world.run()
    assert world.did.count("destroy") == 2


def test_expired_credentials_end_it_at_once_whatever_else_failed(world: World) -> None:
    world.tries = [failed(EXPIRED, HELD)]
    with pytest.raises(UserError, match=r"credentials have expired.*continues from there"):
        world.run()
    assert world.did.count("destroy") == 1


@pytest.mark.parametrize(
    "error",
    [
        httpx2.ConnectError("connection refused"),
        EndpointConnectionError(endpoint_url="https://eks"),
        refusal("Throttling", 400, "DescribeCluster"),
    ],
)
def test_a_look_of_our_own_that_fails_is_tried_again_as_the_engines(world: World, error: Exception) -> None:
    world.tries = [error, None]
    world.run()
    assert world.did.count("destroy") == 2


def test_a_look_that_is_denied_is_told(world: World) -> None:
    world.tries = [refusal("AccessDenied", 403, "DescribeCluster")]
    with pytest.raises(PermanentError, match="AccessDenied"):
        world.run()
    assert world.did.count("destroy") == 1


def test_a_mistake_of_ours_is_no_weather(world: World) -> None:
    world.tries = [ValueError("a mistake"), None]
    with pytest.raises(ValueError, match="a mistake"):
        world.run()


def test_instances_of_a_node_group_that_hangs_are_ended_directly(world: World) -> None:
    world.tries = [failed(HELD), failed(THROTTLED, urn=GROUP), None]
    world.run()
    assert [one for one in world.did if one in ("destroy", "end instances")] == [
        "destroy", "destroy", "end instances", "destroy",
    ]  # fmt: skip
    assert world.notes[0].startswith("Subnet gpu: something else still holds it: DependencyViolation")


@pytest.mark.parametrize(
    "error",
    [EndpointConnectionError(endpoint_url="https://ec2"), refusal("UnauthorizedOperation", 403, "TerminateInstances")],
)
def test_who_cannot_end_instances_tries_the_stack_again(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(context: Any) -> None:
        raise error

    monkeypatch.setattr(teardown, "end_instances", refuse)
    world.tries = [failed(THROTTLED, urn=GROUP), None]
    world.run()
    assert world.did.count("destroy") == 2
    monkeypatch.setattr(teardown, "end_instances", lambda context: 1 / 0)
    world.tries = [failed(THROTTLED, urn=GROUP), None]
    with pytest.raises(ZeroDivisionError):
        world.run()


# --- the last word ---


def test_each_thing_that_is_left_is_named_with_its_reason_and_its_cure(world: World) -> None:
    world.tries = [failed(DENIED, DENIED + " either")]
    world.rows = (
        Remain("network interface eni-1", "of the load balancer web", "its owner removes it"),
        Remain("network interface eni-2", "of the NAT gateway", "it goes with that", waits=True),
        Remain("file system fs-1", "FAILED", "ask AWS Support"),
    )
    with pytest.raises(PermanentError) as told:
        world.run()
    words = str(told.value)
    assert "campaign train is not torn down" in words
    assert "Subnet gpu: AccessDenied: you may not" in words and "you may not either" in words
    assert "network interface eni-1: of the load balancer web" in words and "file system fs-1: FAILED" in words
    assert "eni-2" not in words, "it only waits for another"
    assert "its owner removes it; ask AWS Support; allow the action that is named" in words
    assert words.count("allow the action") == 1
    assert [one for one in world.notes if "is left" in one] == [str(world.rows[0]), str(world.rows[2])]


def test_an_engine_that_names_no_resource_is_told_in_its_own_words(world: World) -> None:
    world.tries = [EngineFailed("pulumi destroy", "train", (), "AccessDenied: no state for you")]
    with pytest.raises(PermanentError, match="seen: AccessDenied: no state for you"):
        world.run()


# --- an empty stack ---


def test_an_empty_stack_is_believed_when_nothing_certain_is_seen(world: World) -> None:
    world.held = [0]
    assert world.run() == {"resources": 0, "swept": []}
    assert "look" in world.did and "the stack was empty and nothing is left" in world.notes


def test_a_stack_that_held_something_needs_no_look(world: World) -> None:
    world.held = [1]
    world.run()
    assert "look" not in world.did and "1 resources destroyed" in world.notes


def test_what_listings_still_show_of_an_empty_stack_has_a_minute_to_go(world: World) -> None:
    world.held, world.sights = [0], [("cluster bivouac-train",)] * 40 + [()]
    assert world.run()["resources"] == 0
    assert 30 < world.now <= 60 and any("cluster bivouac-train" in one for one in world.steps)


def test_resources_without_a_stack_are_refused_with_the_command_that_removes_them(world: World) -> None:
    world.held, world.sights = [0], [("cluster bivouac-train",)]
    with pytest.raises(PermanentError, match=r"the state of stack.*cluster bivouac-train.*`bivouac sweep train`"):
        world.run()
    assert 60 <= world.now < 62


# --- what holds it up meanwhile ---


class Clockwork:
    """A thread that runs in place: each look of the watch comes at once, so many of them."""

    def __init__(self, looks: int) -> None:
        self.looks, self.waited = looks, list[float]()

    def Event(self) -> Any:
        return SimpleNamespace(wait=self._wait, set=lambda: None)

    def Thread(self, *, target: Any, name: str, daemon: bool) -> Any:
        assert daemon, "no driver waits for it at its end"
        return SimpleNamespace(start=target)

    def _wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return len(self.waited) > self.looks


@pytest.mark.parametrize(("since", "told"), [(-20.0, False), (-20.5, True)])
def test_what_takes_longer_than_twenty_seconds_is_told_with_what_holds_it(
    world: World, monkeypatch: pytest.MonkeyPatch, since: float, told: bool
) -> None:
    clockwork = Clockwork(1)
    monkeypatch.setattr(teardown, "threading", clockwork)
    world.rows = (Remain("network interface eni-1", "of the load balancer web", "its owner removes it"),)
    world.watch.open = {"urn": ("aws:ec2/subnet:Subnet", since), "young": ("aws:ec2/vpc:Vpc", 0.0)}
    world.run()
    assert clockwork.waited == [15.0, 15.0]
    assert world.steps == (["Subnet since 20 s: " + str(world.rows[0])] if told else [])


def test_the_two_that_take_longest_are_told_and_the_watch_ends_with_the_destroy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "threading", Clockwork(1))
    kinds = {"role": "Role", "vpc": "Vpc", "subnet": "Subnet"}
    world.watch.open = {one: (f"aws:x/{one}:{kind}", -100.0) for one, kind in kinds.items()}
    world.run()
    assert world.steps == ["Role since 100 s", "Vpc since 100 s"]


def test_the_watch_ends_though_the_destroy_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[bool]()
    event = SimpleNamespace(wait=lambda seconds: True, set=lambda: ended.append(True))
    thread = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(teardown, "threading", SimpleNamespace(Event=lambda: event, Thread=lambda **_: thread))
    world.tries = [failed(DENIED)]
    with pytest.raises(PermanentError):
        world.run()
    assert ended == [True]
