"""How often and how long a teardown tries, and what it says of what stays."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from botocore.exceptions import EndpointConnectionError

from infra.campaign import teardown
from infra.engine.failures import EngineFailed
from infra.errors import PermanentError, UserError
from infra.kinds import Remain
from tests.worlds.s3 import refusal
from tests.worlds.teardown import DENIED, EXPIRED, GROUP, HELD, THROTTLED, FakedTeardown, failed, world

__all__ = ["world"]


def test_what_may_pass_is_tried_again_after_pauses_that_double_up_to_a_minute(world: FakedTeardown) -> None:
    world.tries, world.held = [failed(THROTTLED)] * 7 + [None], [7, 9, 6, 6, 6, 6, 5, 1]
    assert world.run().resources == 9, "as many as there ever were"
    assert world.paused == [2, 4, 8, 16, 32, 60, 60] and world.did.count("destroy") == 8
    assert world.steps[0].startswith("another try in a moment: Subnet gpu: Throttling")


def test_three_tries_in_a_row_that_removed_nothing_are_enough(world: FakedTeardown) -> None:
    world.tries, world.held = [failed(HELD)], [9, 8, 8, 7, 7, 7, 7]
    with pytest.raises(PermanentError, match="is not torn down"):
        world.run()
    assert world.did.count("destroy") == 7, "two that were the same did not count before something went"


UNAVAILABLE = "ServiceUnavailable: try later"


@pytest.mark.parametrize("words", [(THROTTLED,), (UNAVAILABLE,), (THROTTLED, UNAVAILABLE)])
def test_what_aws_only_throttles_or_fails_is_tried_for_an_hour(world: FakedTeardown, words: tuple[str, ...]) -> None:
    world.tries = [failed(*words)]
    with pytest.raises(PermanentError):
        world.run()
    assert 3600 < world.now < 3700 and world.did.count("destroy") > 30


@pytest.mark.parametrize("held", [7, 0])
def test_a_throttled_try_beside_a_held_thing_counts_as_futile(world: FakedTeardown, held: int) -> None:
    world.tries, world.held = [failed(THROTTLED, HELD)], [held]
    with pytest.raises(PermanentError):
        world.run()
    assert world.did.count("destroy") == 4


@pytest.mark.parametrize(("minutes", "tries"), [(19, 5), (31, 3), (61, 2)])
def test_no_try_begins_an_hour_after_the_first_failure(world: FakedTeardown, minutes: float, tries: int) -> None:
    _each_takes(world, minutes)
    world.tries = [failed(THROTTLED)]
    with pytest.raises(PermanentError):
        world.run()
    assert world.did.count("destroy") == tries


def _each_takes(world: FakedTeardown, minutes: float) -> None:
    destroy = world.destroy

    def slow(stack: str) -> None:
        world.now += 60 * minutes
        destroy(stack)

    world.destroy = slow  # type: ignore[method-assign]


def test_the_hour_begins_again_with_whatever_was_removed(world: FakedTeardown) -> None:
    """EKS, its node groups and a file system may rightly take 45 minutes each."""
    _each_takes(world, 45)
    world.tries, world.held = [failed(HELD)] * 5 + [None], [60, 40, 20, 10, 5, 1]
    world.run()
    assert world.did.count("destroy") == 6


@pytest.mark.parametrize("words", [HELD, THROTTLED, DENIED, EXPIRED])
def test_instances_are_ended_before_it_gives_up_whatever_failed(world: FakedTeardown, words: str) -> None:
    world.tries = [failed(words)]
    with pytest.raises((PermanentError, UserError)):
        world.run()
    assert world.did[-1] == "end instances"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (failed(DENIED), DENIED),
        (failed("something that nobody ever heard of"), "something that nobody ever heard of"),
        (refusal("AccessDenied", 403, "DescribeCluster"), "AccessDenied"),
    ],
)
def test_what_will_not_pass_is_told_at_once(world: FakedTeardown, error: Exception, words: str) -> None:
    world.tries = [error]
    with pytest.raises(PermanentError) as told:
        world.run()
    assert world.did.count("destroy") == 1 and not world.paused
    assert words in str(told.value) and "then `bivouac down train` continues" in str(told.value)


def test_expired_credentials_end_it_at_once_whatever_else_failed(world: FakedTeardown) -> None:
    world.tries = [failed(EXPIRED, HELD)]
    with pytest.raises(UserError, match=r"credentials have expired.*continues from there"):
        world.run()
    assert world.did.count("destroy") == 1


@pytest.mark.parametrize(
    "error",
    [
        failed(THROTTLED),
        failed(DENIED, HELD),
        httpx2.ConnectError("connection refused"),
        EndpointConnectionError(endpoint_url="https://eks"),
        refusal("Throttling", 400, "DescribeCluster"),
    ],
)
def test_what_may_pass_is_tried_again_with_the_cluster_forgotten_anew(world: FakedTeardown, error: Exception) -> None:
    """It may be gone since the last try; a look of our own fails as the engine's do."""
    world.tries = [error, None]
    world.run()
    assert world.did.count("destroy") == world.did.count("forget") == 2


def test_a_mistake_of_ours_is_no_weather(world: FakedTeardown) -> None:
    world.tries = [ValueError("a mistake"), None]
    with pytest.raises(ValueError, match="a mistake"):
        world.run()


def test_instances_of_a_node_group_that_hangs_are_ended_directly(world: FakedTeardown) -> None:
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
    world: FakedTeardown, monkeypatch: pytest.MonkeyPatch, error: Exception
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


def test_each_thing_that_is_left_is_named_with_its_reason_and_its_cure(world: FakedTeardown) -> None:
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
    assert [note for note in world.notes if "is left" in note] == [str(world.rows[0]), str(world.rows[2])]


def test_an_engine_that_names_no_resource_is_told_in_its_own_words(world: FakedTeardown) -> None:
    world.tries = [EngineFailed("pulumi destroy", "train", (), "AccessDenied: no state for you")]
    with pytest.raises(PermanentError, match="seen: AccessDenied: no state for you"):
        world.run()
