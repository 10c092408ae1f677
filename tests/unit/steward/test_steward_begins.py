"""A steward that begins: it waits for who holds the lease and for a record that is away, and no bill waits with it."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra.clock import Clock
from infra.errors import LeaseLost
from infra.record.holder import Holder
from infra.record.lease import Lease
from infra.record.payloads.training import Relaunched
from infra.record.store import CampaignStore
from infra.steward import __main__ as main
from infra.steward.last_resort import HOLDER, other_holder, sign
from tests.fake_cluster import pod
from tests.unit.steward.steward_story import MINUTE_S, StewardRun, config, story
from tests.worlds.s3 import refusal

__all__ = ["story"]


@pytest.fixture
def begin(story: StewardRun, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Begins one, whose turns are `each_turn`'s; the steward that began is its lease."""

    def run(each_turn: Any = lambda: None, version: int = 0) -> Lease | None:
        def rest(seconds: float) -> None:
            story.time.go(seconds)
            each_turn()

        monkeypatch.setattr(main.watchdog, "pause", rest)
        monkeypatch.setattr(main, "followers_of", lambda client: None)
        monkeypatch.setattr(main, "Steward", lambda *given: given[5])
        store = CampaignStore(story.s3, "state", "story", "begun")
        holder = Holder(user="new", host="h", boot_id="b", pid_namespace="", pid=7, start_ticks=7)
        lease = store.lease("steward", timedelta(seconds=15), holder, patient=True)
        clock = Clock(story.time, story.time.wall)
        made = config().model_copy(update={"version": version})
        begun: Any = main._begin(made, story.aws, story.cluster, store, lease, clock)  # type: ignore[arg-type]
        return begun  # type: ignore[no-any-return]

    return run


def test_it_begins_at_once_where_nobody_holds_the_lease(begin: Any, story: StewardRun) -> None:
    before = story.time()
    begin().check()
    assert story.time() == before


def test_one_that_stands_by_has_the_campaign_half_a_minute_after_the_holder_s_death(
    begin: Any, story: StewardRun
) -> None:
    other = Holder(user="old", host="h", boot_id="b", pid_namespace="", pid=6, start_ticks=6)
    story.store().lease("steward", timedelta(seconds=15), other, patient=True).acquire()
    died = story.time()
    begin().check()
    assert 15 < story.time() - died < 30


def test_a_record_that_is_away_is_waited_for(begin: Any, story: StewardRun) -> None:
    begun = story.time()

    def turn() -> None:
        story.s3.away = refusal("InternalError", 500) if story.time() < begun + 20 * MINUTE_S else None

    story.s3.away = refusal("InternalError", 500)
    begin(turn).check()
    assert 20 <= (story.time() - begun) / MINUTE_S < 21 and story.aws.desired == 2


@pytest.mark.parametrize("holder", [None, "gone", "living"])
def test_without_a_record_the_gang_commits_and_nodes_go_back_unless_a_steward_lives(
    begin: Any, story: StewardRun, holder: str | None
) -> None:
    story.cluster.jobs["story-a1"] = SimpleNamespace(
        metadata=SimpleNamespace(
            name="story-a1",
            labels={"bivouac.dev/campaign": "story", "bivouac.dev/attempt": "1"},
            deletionTimestamp=None,
        )
    )
    if holder:
        sign(story.cluster, holder, "story")  # type: ignore[arg-type]
    story.cluster.pods["living"] = pod("living", 9, {"app": "steward"})
    begun, zero = story.time(), list[float]()

    def turn() -> None:
        if story.aws.desired == 0 and not zero:
            zero.append((story.time() - begun) / MINUTE_S)
        if story.time() > begun + 60 * MINUTE_S:
            story.s3.away = None

    story.s3.away = refusal("KMS.DisabledException", 400)
    if holder == "living":
        with pytest.raises(LeaseLost, match="living"):
            begin(turn)
        assert story.aws.desired == 2 and "story-a1" in story.cluster.jobs
        return
    begin(turn).check()
    assert 30 <= zero[0] <= 31 and story.cluster.writes == ["delete story-a1"]


def test_a_configuration_that_a_newer_one_replaced_begins_nothing(begin: Any, story: StewardRun) -> None:

    story.store().append(Relaunched(version=1))
    assert begin(version=0) is None
    assert begin(version=1) is not None


def test_kubernetes_names_the_last_holder(story: StewardRun) -> None:
    client: Any = story.cluster
    assert other_holder(client, "a") is None, "nobody has signed"
    sign(client, "a", "story")
    story.cluster.pods["a"] = pod("a", 0, {"app": "steward"})
    story.cluster.pods["b"] = pod("b", 1, {"app": "steward"})
    assert other_holder(client, "a") is None and other_holder(client, "b") == "a"
    sign(client, "b", "story")
    config_map = story.cluster.config_maps[HOLDER]
    assert config_map.metadata is not None
    assert config_map.metadata.labels == {"bivouac.dev/campaign": "story"}, "whose it is, a label says"
    assert config_map.data == {"pod": "b"} and other_holder(client, "a") == "b"
    del story.cluster.pods["b"]
    assert other_holder(client, "a") is None, "its pod is gone"
