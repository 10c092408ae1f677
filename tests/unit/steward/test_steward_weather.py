"""A steward whose sources fail for long: it rides through, keeps its clocks, and no bill runs on without end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from infra.errors import LeaseLost
from infra.record.holder import Holder
from infra.steward.last_resort import HOLDER
from infra.steward.watchdog import STUCK_S
from tests.unit.steward.steward_story import StewardRun, config, story
from tests.worlds.s3 import refusal

__all__ = ["story"]
MINUTE = 60.0


def between(story: StewardRun, begin: float, end: float, change: Callable[[bool], None]) -> Callable[[], None]:
    """`change(True)` from the begin-th minute on, `change(False)` from the end-th."""
    start = story.time()

    def turn() -> None:
        change(begin <= (story.time() - start) / MINUTE < end)

    return turn


def s3_away(story: StewardRun) -> Callable[[bool], None]:
    def change(away: bool) -> None:
        story.s3.away = refusal("InternalError", 500) if away else None

    return change


def cluster_away(story: StewardRun) -> Callable[[bool], None]:
    return lambda away: setattr(story.cluster, "away", away)


def aws_away(story: StewardRun) -> Callable[[bool], None]:
    return lambda away: setattr(story.aws, "away", away)


@pytest.mark.parametrize("weather", [s3_away, cluster_away, aws_away], ids=["S3", "Kubernetes", "EC2 and EKS"])
def test_ten_minutes_without_one_source_cost_a_training_gang_nothing(
    story: StewardRun, weather: Callable[[StewardRun], Callable[[bool], None]]
) -> None:
    assert not story.run(27, between(story, 3, 13, weather(story)))
    (attempt,) = story.state().attempts
    assert attempt.ended is None and story.state().outcome is None
    assert story.cluster.writes == ["create story-a1"] and story.aws.desired == 2
    assert story.live()["step"] > 90 and story.live()["why"] == "training", "all is seen again"


@pytest.mark.parametrize(
    ("weather", "words"),
    [(cluster_away, "the cluster cannot be reached for 0:05:00"), (aws_away, "the AWS cannot be reached for 0:05:00")],
    ids=["Kubernetes", "EC2"],
)
def test_what_cannot_be_seen_is_said(
    story: StewardRun, weather: Callable[[StewardRun], Callable[[bool], None]], words: str
) -> None:
    story.run(10, between(story, 5, 15, weather(story)))
    assert words in story.live()["why"] and story.live()["step"] > 55, "the agents are asked all the same"


@pytest.mark.parametrize("life", [1.0, 0.6, 7.0])
def test_a_hung_gang_ends_in_time_though_its_steward_restarts_every_minute(story: StewardRun, life: float) -> None:
    """Each restart set the clock to zero, and the gang billed until the deadline."""
    story.run(3)
    story.pace, hung = 0, story.time()
    while not story.events("attempt.ended") and story.time() - hung < 30 * MINUTE:
        story.run(life)
    (ended,) = story.events("attempt.ended")
    assert ended.data["failure"] == "hang"
    hang = config().spec.recovery.hang_timeout
    took = ended.at - story.time.wall() + timedelta(seconds=story.time() - hung)
    assert hang <= took + timedelta(seconds=10) and took <= hang + timedelta(seconds=40)


def test_a_gang_that_never_starts_ends_in_time_though_its_steward_restarts(story: StewardRun) -> None:
    begun = story.time()
    story.pace = 0
    while not story.events("attempt.ended") and story.time() - begun < 30 * MINUTE:
        story.run(1)
    assert story.events("attempt.ended")[0].data["failure"] == "startup"
    assert story.time() - begun <= 12 * MINUTE


def test_missing_capacity_ends_the_campaign_in_time_though_its_steward_restarts(story: StewardRun) -> None:
    del story.cluster.nodes["node-1"]
    begun, limit = story.time(), config().spec.capacity_timeout
    while story.state().outcome is None and story.time() - begun < 2 * limit.total_seconds():
        story.run(1)
    assert story.state().outcome == "stopped"
    assert timedelta() <= timedelta(seconds=story.time() - begun) - limit <= timedelta(minutes=2)


def test_a_gang_that_stepped_while_its_steward_was_away_is_no_hung_gang(story: StewardRun) -> None:
    story.run(3)
    story.time.go(20 * MINUTE)
    story.steps = {0: 500, 1: 500}
    story.run(1)
    assert not story.events("attempt.ended")


def test_a_gang_that_hangs_while_s3_is_away_ends_as_soon_as_it_is_back(story: StewardRun) -> None:
    """Nothing is touched on a lease that nobody can prove; the clocks go on."""

    change = between(story, 4, 12, s3_away(story))

    def turn() -> None:
        change()
        story.pace = int(story.time() < begun + 5 * MINUTE)
        if story.s3.away:
            assert story.cluster.writes == ["create story-a1"]

    begun = story.time()
    story.run(14, turn)
    (ended,) = story.events("attempt.ended")
    assert ended.data["failure"] == "hang"
    assert ended.at - story.time.wall() + timedelta(seconds=story.time() - begun) < timedelta(minutes=13)


@pytest.mark.parametrize("jump", [timedelta(days=3650), timedelta(days=-3650)], ids=["ten years on", "ten years back"])
def test_a_node_whose_own_clock_jumps_ends_no_campaign_and_spends_no_money(story: StewardRun, jump: timedelta) -> None:
    story.run(3)
    story.own_clock = jump
    story.run(10)
    assert story.state().outcome is None and not story.events("attempt.ended")
    assert story.live()["spent_usd"] < 2
    assert "clocks disagree: this machine is" in story.live()["why"] and "believed: S3" in story.live()["why"]


def test_a_node_whose_own_clock_stands_still_still_keeps_the_deadline(story: StewardRun) -> None:
    def turn() -> None:
        story.own_clock = -timedelta(seconds=story.time() - 1000)
        if story.time.wall() < config().deadline - timedelta(minutes=30):
            story.time.go(10 * MINUTE)
            assert story.steward is not None
            story.steward.lease.renew()

    assert story.run(25 * 60, turn)
    assert story.state().outcome == "stopped" and "deadline" in story.events("training.finished")[0].data["why"]
    assert story.time.wall() < config().deadline


def test_a_key_that_stays_disabled_ends_the_bill_and_the_gang_commits_first(story: StewardRun) -> None:
    """S3 refuses every write and read for the key: the record cannot even say so."""

    def turn(begun: float = story.time()) -> None:
        disabled = refusal("KMS.DisabledException", 400, message="arn:aws:kms:key/k is disabled")
        story.s3.away = disabled if 5 <= (story.time() - begun) / MINUTE < 45 else None

    def watched() -> None:
        turn()
        if story.aws.desired == 0 and not zero:
            assert story.cluster.writes == ["create story-a1", "delete story-a1"]
            zero.append((story.time() - begun) / MINUTE)

    begun, zero = story.time(), list[float]()
    assert story.run(60, watched), "it ends by the record as soon as that can be written"
    blind = config().spec.recovery.blind_timeout.total_seconds() / MINUTE
    assert blind <= zero[0] - 5 <= blind + 2
    finished = story.events("training.finished")[0]
    assert finished.data["outcome"] == "stopped" and "KMS.DisabledException" in finished.data["why"]


def test_a_steward_that_was_followed_by_another_gives_back_nothing(story: StewardRun) -> None:
    """S3 is away for this node only: Kubernetes names who took the lease after it."""

    def turn() -> None:
        story.s3.away = refusal("InternalError", 500)
        held = story.cluster.config_maps[HOLDER]
        held.data = {"pod": "steward-b"}
        story.cluster.pods["steward-b"] = other

    from tests.fake_cluster import pod

    other = pod("steward-b", 9, {"app": "steward"})
    with pytest.raises(LeaseLost, match="steward-b"):
        story.run(40, turn)
    assert story.aws.desired == 2 and "delete story-a1" not in story.cluster.writes


def test_where_neither_s3_nor_kubernetes_can_say_whose_it_is_nothing_is_given_back(story: StewardRun) -> None:
    def turn() -> None:
        s3_away(story)(True)
        cluster_away(story)(True)

    assert not story.run(35, turn)
    assert story.aws.desired == 2


def test_a_launch_that_is_refused_for_good_ends_the_campaign(story: StewardRun) -> None:
    story.cluster.refused = "denied by a policy"
    assert story.run(60)
    finished = story.events("training.finished")[0]
    assert finished.data["outcome"] == "stopped" and "denied by a policy" in finished.data["why"]
    assert story.aws.desired == 0 and story.state().closed


def test_a_lease_that_another_took_ends_the_steward_at_once(story: StewardRun) -> None:
    def turn() -> None:
        if not story.s3.away and story.time() > begun + 5 * MINUTE:
            other = story.store().lease("steward", timedelta(seconds=15), rival)
            story.time.go(20)
            other.acquire()

    begun = story.time()
    rival = Holder(user="b", host="h", boot_id="b2", pid_namespace="", pid=2, start_ticks=2)
    with pytest.raises(LeaseLost):
        story.run(10, turn)


def test_all_waits_of_one_source_are_shorter_than_what_ends_a_steward_that_hangs() -> None:
    from infra.aws.account import QUICK
    from infra.steward.seeing.sources import LONGEST_PAUSE_S

    tries, longest = QUICK.retries["total_max_attempts"], QUICK.connect_timeout + QUICK.read_timeout
    assert 8 * tries * longest < STUCK_S and LONGEST_PAUSE_S < STUCK_S / 10
