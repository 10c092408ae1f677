"""A teardown without an engine: what it may begin with, in which order it goes, and what it makes of an empty stack."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.campaign import teardown
from infra.errors import LeaseLost, NotProven, PermanentError
from infra.kinds import Remain
from infra.record.events import CampaignState, Stage
from infra.record.payloads.outputs import ProvisionOutput
from tests.worlds.s3 import refusal
from tests.worlds.teardown import (
    DENIED,
    NEVER_LAUNCHED,
    NOTHING_TOLD,
    TRAINED,
    FakedTeardown,
    failed,
    world,
)

__all__ = ["world"]


# --- what it may begin with ---


@pytest.mark.parametrize(("state", "may_hold"), [(TRAINED, True), (TRAINED, False), (NOTHING_TOLD, True)])
def test_nothing_is_touched_while_what_was_trained_may_not_be_archived(
    world: FakedTeardown, state: CampaignState, may_hold: bool
) -> None:
    """A record that tells of training counts also in an account without stores."""
    world.state_now, world.may_hold = state, may_hold
    with pytest.raises(NotProven, match="--abandon"):
        world.run()
    assert not world.did and not world.recorded


@pytest.mark.parametrize(
    ("state", "abandon", "recorded"),
    [(TRAINED, True, ["abandoned"]), (NEVER_LAUNCHED, True, []), (NOTHING_TOLD, False, [])],
)
def test_only_what_is_given_up_is_recorded_as_such(
    world: FakedTeardown, state: CampaignState, abandon: bool, recorded: list[str]
) -> None:
    world.state_now = state
    assert world.run(abandon).resources == 7 and world.recorded == recorded


def test_a_damaged_identity_is_nothing_that_a_person_gives_up(
    world: FakedTeardown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(store: Any) -> None:
        raise ValueError("no identity")

    monkeypatch.setattr(teardown, "read_identity", damaged)
    with pytest.raises(ValueError, match="no identity"):
        world.run(abandon=True)
    assert not world.did and not world.recorded


# --- the order of things ---


def test_builders_and_freezes_end_before_the_stack_and_unknown_ones_are_swept_after_it(
    world: FakedTeardown,
) -> None:
    world.left, world.frozen = ("volume vol-1",), {"trainers", "builders"}
    assert world.run().data() == {"resources": 7, "swept": ["volume vol-1"]}
    told = [one for one in world.did if one != "guard"]
    assert told == ["builders", "thaw trainers", "thaw builders", "forget", "destroy", "sweep"]
    assert any("volume vol-1" in note for note in world.notes) and "7 resources destroyed" in world.notes
    assert sum("may buy again" in note for note in world.notes) == 2


def test_a_role_that_was_not_frozen_keeps_nobody_from_the_next(world: FakedTeardown) -> None:
    world.frozen = {"builders"}
    world.run()
    assert not any("swept" in note for note in world.notes), "nothing was"
    assert "thaw builders" in world.did and sum("may buy again" in note for note in world.notes) == 1


def test_a_freeze_that_may_not_be_lifted_is_told(world: FakedTeardown) -> None:
    def denied(**_: str) -> None:
        raise refusal("AccessDenied", 403, "DetachRolePolicy")

    world.detach_role_policy = denied  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="AccessDenied"):
        world.run()
    assert "destroy" not in world.did


@pytest.mark.parametrize("after", [0, 1, 2])
def test_who_lost_the_lease_ends_no_builder_and_thaws_no_role(world: FakedTeardown, after: int) -> None:
    world.lost_after, world.frozen = after, {"trainers", "builders"}
    with pytest.raises(LeaseLost):
        world.run()
    assert [one for one in world.did if one != "guard"] == ["builders", "thaw trainers"][:after]


def test_a_reservation_that_bills_on_is_said(world: FakedTeardown) -> None:
    world.run()
    assert not any("reservation" in note for note in world.notes)
    world.bill = "the reservation cr-1 bills on"
    world.run()
    assert world.notes[-1] == world.bill


@pytest.mark.parametrize("provisioned", [True, False])
def test_the_stack_is_opened_with_the_data_that_provision_recorded(world: FakedTeardown, provisioned: bool) -> None:
    finished = {Stage.PROVISION: ProvisionOutput(data_digest="5b")} if provisioned else {}
    world.state_now = NEVER_LAUNCHED.model_copy(update={"finished_stages": finished})
    world.run()
    assert world.digest == ("5b" if provisioned else "0" * 64)


def test_builders_are_waited_for(world: FakedTeardown) -> None:
    world.builders = [["i-1"], ["i-1"], ["i-1"], []]
    world.run()
    assert world.now == 1.5 and world.steps[:3] == ["builder i-1 is terminating"] * 3 and "destroy" in world.did


def test_a_builder_that_never_ends_is_told_after_twenty_minutes(world: FakedTeardown) -> None:
    world.builders = [["i-1"]]
    with pytest.raises(PermanentError, match=r"a builder does not terminate.*i-1 after 1200 s"):
        world.run()
    assert world.now == 1200 and "destroy" not in world.did


# --- an empty stack ---


def test_an_empty_stack_is_believed_when_nothing_certain_is_seen(world: FakedTeardown) -> None:
    world.held = [0]
    assert world.run().data() == {"resources": 0, "swept": []}
    assert "look" in world.did and "the stack was empty and nothing is left" in world.notes


def test_a_stack_that_held_something_needs_no_look(world: FakedTeardown) -> None:
    world.held = [1]
    world.run()
    assert "look" not in world.did and "1 resources destroyed" in world.notes


def test_what_listings_still_show_of_an_empty_stack_has_a_minute_to_go(world: FakedTeardown) -> None:
    world.held, world.sights = [0], [("cluster bivouac-train",)] * 40 + [()]
    assert world.run().resources == 0
    assert 30 < world.now <= 60 and any("cluster bivouac-train" in step for step in world.steps)


def test_resources_without_a_stack_are_refused_with_the_command_that_removes_them(world: FakedTeardown) -> None:
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
    world: FakedTeardown, monkeypatch: pytest.MonkeyPatch, since: float, told: bool
) -> None:
    clockwork = Clockwork(1)
    monkeypatch.setattr(teardown, "threading", clockwork)
    world.rows = (Remain("network interface eni-1", "of the load balancer web", "its owner removes it"),)
    world.watch.open = {"urn": ("aws:ec2/subnet:Subnet", since), "young": ("aws:ec2/vpc:Vpc", 0.0)}
    world.run()
    assert clockwork.waited == [15.0, 15.0]
    assert world.steps == (["Subnet since 20 s: " + str(world.rows[0])] if told else [])


def test_the_two_that_take_longest_are_told_and_the_watch_ends_with_the_destroy(
    world: FakedTeardown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "threading", Clockwork(1))
    kinds = {"role": "Role", "vpc": "Vpc", "subnet": "Subnet"}
    world.watch.open = {one: (f"aws:x/{one}:{kind}", -100.0) for one, kind in kinds.items()}
    world.run()
    assert world.steps == ["Role since 100 s", "Vpc since 100 s"]


def test_the_watch_ends_though_the_destroy_fails(world: FakedTeardown, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[bool]()
    event = SimpleNamespace(wait=lambda seconds: True, set=lambda: ended.append(True))
    thread = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(teardown, "threading", SimpleNamespace(Event=lambda: event, Thread=lambda **_: thread))
    world.tries = [failed(DENIED)]
    with pytest.raises(PermanentError):
        world.run()
    assert ended == [True]
