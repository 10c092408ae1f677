"""The steward's smaller parts, each alone: who is asked again when, what is kept of its clocks, the last resort."""

from __future__ import annotations

import json
import logging
import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import yaml
from botocore.exceptions import EndpointConnectionError

from infra.clock import Clock
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL
from infra.errors import LeaseLost, LeaseUnproven
from infra.record.events import CampaignState
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec
from infra.steward import gangs, last_resort
from infra.steward.clocks import CLOCKS, Clocks
from infra.steward.keeping import Keeper
from infra.steward.last_resort import give_back, other_holder, sign
from infra.steward.seeing.sources import Away, Sources
from tests.part import part
from tests.root import ROOT
from tests.unit.fake_s3 import FakeS3, Time
from tests.unit.steward.steward_story import FakeCluster, answer, config, pod
from trainer.contract.workload import WorkloadConfig

FAR = EndpointConnectionError(endpoint_url="https://ec2")
MINUTE = timedelta(minutes=1)


# --- sources ---


class Asked:
    def __init__(self) -> None:
        self.time, self.looks = Time(), 0
        self.sources = Sources(self.time)
        self.error: Exception | None = FAR

    def look(self) -> str:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return "seen"

    def ask(self) -> str:
        return self.sources.ask("AWS", self.look)


def test_a_source_that_is_away_is_asked_again_after_pauses_that_double_up_to_half_a_minute() -> None:
    asked, at = Asked(), list[float]()
    for tick in range(130):
        before = asked.looks
        with pytest.raises(Away):
            asked.ask()
        if asked.looks > before:
            at.append(tick)
        asked.time.go(1)
    assert at == [0, 1, 3, 7, 15, 31, 61, 91, 121]


def test_an_outage_lasts_until_it_is_answered_and_tells_its_newest_words() -> None:
    asked = Asked()
    with pytest.raises(Away):
        asked.ask()
    asked.time.go(90)
    asked.error = TimeoutError("x" * 400)
    with pytest.raises(Away) as told:
        asked.ask()
    assert told.value.__cause__ is asked.error
    (outage,) = asked.sources.unseen()
    assert (outage.source, outage.lasts, outage.why) == (
        "AWS", timedelta(seconds=90), f"TimeoutError: {'x' * 286}",
    )  # fmt: skip
    assert asked.sources.away("AWS") and not asked.sources.due("AWS") and not asked.sources.away("record")
    asked.time.go(2)
    asked.error = None
    assert asked.ask() == "seen" and asked.sources.unseen() == () and asked.sources.due("AWS")
    asked.sources.failed("AWS", FAR)
    assert asked.sources.unseen()[0].lasts == timedelta()
    asked.time.go(1)
    assert asked.sources.due("AWS"), "the pauses begin anew"


@pytest.mark.parametrize("error", [FAR, answer(503, "no"), httpx2.ReadTimeout("slow"), OSError("broken pipe")])
def test_what_is_weather(error: Exception) -> None:
    asked = Asked()
    asked.error = error
    with pytest.raises(Away):
        asked.ask()


def test_a_mistake_of_ours_is_no_weather() -> None:
    asked = Asked()
    asked.error = KeyError("mine")
    with pytest.raises(KeyError):
        asked.ask()
    assert asked.sources.unseen() == ()


def test_an_outage_is_said_at_once_in_new_words_every_five_minutes_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "steward")
    asked = Asked()

    def said(error: Exception, after_s: float) -> list[str]:
        caplog.clear()
        asked.time.go(after_s)
        asked.sources.failed("AWS", error)
        return [one.getMessage() for one in caplog.records]

    assert said(OSError("request 17 failed"), 0) == ["AWS does not answer: OSError: request 17 failed"]
    assert said(OSError("request 18 failed"), 60) == [], "only its number is another"
    assert said(OSError("no route"), 60) == ["AWS has not answered for 120 s: OSError: no route"]
    assert said(OSError("no route"), 299) == []
    assert said(OSError("no route"), 1) == ["AWS has not answered for 420 s: OSError: no route"]
    assert said(OSError("no route"), 299) == []
    caplog.clear()
    asked.sources.answered("AWS")
    asked.sources.answered("AWS")
    assert [one.getMessage() for one in caplog.records] == ["AWS answers again, after 719 s"]


# --- clocks that are kept ---


class Kept:
    def __init__(self) -> None:
        self.time = Time()
        self.store = CampaignStore(FakeS3(self.time), "state", "story", "w")
        self.keeper = Keeper(self.store, Clock(self.time, self.time.wall))

    def stored(self) -> Any:
        return self.store.get_json(CLOCKS)

    def state(self, **launched: timedelta) -> CampaignState:
        """Attempts `a1`, `a2`, ..., launched so long ago; the campaign began a day ago."""
        now = self.time.wall()
        attempts = tuple({"attempt": int(name[1:]), "launched_at": now - ago} for name, ago in launched.items())
        return CampaignState(started_at=now - timedelta(days=1), attempts=attempts)


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_clocks_are_kept_at_once_and_then_at_changes_and_at_most_every_quarter_of_a_minute(kept: Kept) -> None:
    clocks = Clocks.begin(1, kept.time())
    kept.keeper.keep(clocks)
    assert kept.stored()["step"] == 0
    clocks.rose(5, kept.time())
    for seconds, step in ((14.5, 0), (0.5, 5)):
        kept.time.go(seconds)
        kept.keeper.keep(clocks)
        assert kept.stored()["step"] == step
    kept.store.put_json(CLOCKS, {})
    kept.time.go(60)
    kept.keeper.keep(clocks)
    assert kept.stored() == {}, "nothing is new"
    clocks.rose(6, kept.time())
    kept.keeper.keep(clocks)
    assert kept.stored()["step"] == 6


def test_a_successor_goes_on_from_what_was_kept_and_keeps_nothing_that_is_the_same(kept: Kept) -> None:
    clocks = Clocks(2, kept.time() - 600, kept.time() - 120, 70)
    kept.keeper.keep(clocks)
    kept.time.go(30)
    successor = Keeper(kept.store, Clock(kept.time, kept.time.wall))
    taken = successor.take_over(kept.state(a1=5 * MINUTE, a2=11 * MINUTE), 2)
    assert (taken.attempt, taken.step) == (2, 70)
    assert kept.time() - taken.launched == pytest.approx(630) and kept.time() - taken.stepped == pytest.approx(150)
    kept.store.s3.objects.clear()
    successor.keep(taken)
    assert kept.stored() is None


def test_the_launch_that_the_events_tell_bounds_the_clocks(kept: Kept) -> None:
    """Of this attempt: others have launches of their own."""
    kept.keeper.keep(Clocks(2, kept.time() - 6000, kept.time() - 6000, 70))
    taken = kept.keeper.take_over(kept.state(a1=9 * MINUTE, a2=3 * MINUTE, a3=MINUTE), 2)
    assert kept.time() - taken.launched == pytest.approx(180) and kept.time() - taken.stepped == pytest.approx(180)


@pytest.mark.parametrize("stored", [None, {"of": "another version"}])
def test_without_clocks_that_can_be_read_the_events_are_what_is_known(kept: Kept, stored: Any) -> None:
    if stored is not None:
        kept.store.put_json(CLOCKS, stored)
    taken = kept.keeper.take_over(kept.state(a1=9 * MINUTE, a2=3 * MINUTE), 2)
    assert (taken.step, kept.time() - taken.launched) == (0, pytest.approx(180))
    kept.keeper.keep(taken)
    assert kept.stored()["attempt"] == 2


def test_what_a_predecessor_of_another_version_stored_replaces_what_one_has_kept_oneself(kept: Kept) -> None:
    kept.keeper.keep(Clocks(2, kept.time() - 600, kept.time() - 120, 70))
    kept.store.put_json(CLOCKS, {"of": "another version"})
    taken = kept.keeper.take_over(kept.state(a2=3 * MINUTE), 2)
    assert (taken.step, kept.time() - taken.launched) == (0, pytest.approx(180))


# --- the gang of an attempt ---


def test_a_gang_is_what_the_configuration_says() -> None:
    told = config()
    made = gangs.gang(told, 3, "files")
    assert gangs.labels(told, 3) == {"bivouac.dev/campaign": "story", "bivouac.dev/attempt": "3"}
    assert gangs.job(told, 3) == made.name == "story-a3"
    assert (made.campaign, made.attempt, made.config_map) == ("story", 3, "files")
    assert (made.image, made.code_digest, made.nodes, made.grace_seconds) == ("i@sha256:0", "c", 2, 1)
    assert (made.ranks_per_node, made.accelerators, made.efa_interfaces, made.efa_by_claim) == (1, 0, 0, False)
    assert not made.each_to_its_end and not made.sees_node
    addons = told.spec.addons.model_copy(update={"efa": "dra"})
    by_claim = told.model_copy(update={"spec": told.spec.model_copy(update={"addons": addons})})
    assert gangs.gang(by_claim, 3, "files").efa_by_claim


def test_a_gang_with_secrets_is_told_where_they_lie() -> None:
    plain = config()
    assert not gangs.gang(plain, 3, "files").secrets and set(plain.gang_files) == set(plain.job_files) == {"train.json"}
    document = yaml.safe_load((ROOT / "trainer/examples/ddp/rehearsal.yaml").read_text())
    document["workload"]["secrets"] = {"TOKEN": {"secret": "team/all", "key": "token"}, "KEY": {"parameter": "/k"}}
    spec = Spec.model_validate(document)
    workload = part(WorkloadConfig, identity="me")
    told = plain.model_copy(update={"spec": spec, "train": None, "workload": workload})
    assert gangs.gang(told, 3, "files").secrets
    assert set(told.gang_files) == {"workload.json", "secrets.json"} and set(told.job_files) == {"workload.json"}
    assert json.loads(told.gang_files["secrets.json"]) == {
        "region": "us-east-1",
        "secrets": {"TOKEN": {"secret": "team/all", "key": "token"}, "KEY": {"parameter": "/k"}},
    }


# --- the last resort ---


class Resort:
    """A cluster with one gang of two pods and this steward; `after`: what a pause of the wait does."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.cluster, self.now, self.desired = FakeCluster(), 0.0, list[int]()
        self.unproven, self.after = False, lambda: None
        labels = {CAMPAIGN_LABEL: "story", ATTEMPT_LABEL: "1"}
        for campaign, name in (("story", "story-a1"), ("story", "story-a2"), ("other", "other-a1")):
            told = {CAMPAIGN_LABEL: campaign, ATTEMPT_LABEL: name[-1]}
            metadata = SimpleNamespace(name=name, labels=told, deletionTimestamp=None)
            self.cluster.jobs[name] = SimpleNamespace(metadata=metadata)
        self.stays = {"late": pod("late", 0, labels), "done": pod("done", 1, labels, "Succeeded")}
        self.stays |= {"failed": pod("failed", 2, labels, "Failed")}
        self.stays |= {"steward": pod("steward", 3, {**labels, "app": "steward"})}
        self.cluster.pods |= self.stays
        patch.setattr(last_resort, "time", SimpleNamespace(monotonic=lambda: self.now))

    def pause(self) -> None:
        self.now += 1
        self.after()

    def check(self) -> None:
        if self.unproven:
            raise LeaseUnproven("not renewed", seen="503", cure="wait", delay=MINUTE)

    def set_desired(self, count: int) -> None:
        self.desired.append(count)

    def give_back(self) -> bool:
        given: Any = (self.cluster, self, self, "story", 60.0, self.pause, "no record")
        return give_back(*given)


@pytest.fixture
def resort(monkeypatch: pytest.MonkeyPatch) -> Resort:
    return Resort(monkeypatch)


def test_every_gang_of_the_campaign_is_asked_and_waited_for_before_its_nodes_go(resort: Resort) -> None:
    def after() -> None:
        assert not resort.desired
        if resort.now == 30:
            del resort.cluster.pods["late"]

    resort.after = after
    assert resort.give_back() and resort.desired == [0] and resort.now == 30
    assert resort.cluster.writes == ["delete story-a1", "delete story-a2"]


def test_a_gang_that_does_not_end_is_waited_for_no_longer_than_its_grace_and_a_margin(resort: Resort) -> None:
    assert resort.give_back() and resort.desired == [0] and resort.now == 75


def test_a_gang_that_cannot_be_asked_is_not_waited_for(resort: Resort) -> None:
    resort.cluster.away = True
    assert resort.give_back() and resort.desired == [0] and resort.now == 0


@pytest.mark.parametrize("error", [FAR, httpx2.ConnectError("no cluster")])
def test_nodes_that_do_not_go_yet_are_told(resort: Resort, error: Exception) -> None:
    def refused(count: int) -> None:
        raise error

    resort.set_desired = refused  # type: ignore[method-assign]
    assert resort.give_back() is False


def test_a_mistake_of_ours_in_giving_back_is_raised(resort: Resort) -> None:
    def mistaken() -> None:
        raise KeyError("mine")

    resort.after = mistaken
    with pytest.raises(KeyError):
        resort.give_back()


def test_who_cannot_prove_its_lease_gives_back_unless_kubernetes_names_a_living_other(resort: Resort) -> None:
    resort.unproven = True
    sign(resort.cluster, "steward")  # type: ignore[arg-type]
    with pytest.raises(LeaseLost, match=r"another steward has the campaign.*steward"):
        resort.give_back()
    assert not resort.desired and not resort.cluster.writes
    sign(resort.cluster, os.uname().nodename)  # type: ignore[arg-type]
    assert resort.give_back() and resort.desired == [0]


def test_where_kubernetes_cannot_name_the_holder_nothing_is_given_back(resort: Resort) -> None:
    resort.unproven, resort.cluster.away = True, True
    assert resort.give_back() is False and not resort.desired


def test_a_proven_lease_asks_nobody(resort: Resort) -> None:
    sign(resort.cluster, "steward")  # type: ignore[arg-type]
    assert resort.give_back() and resort.desired == [0]


@pytest.mark.parametrize(("data", "holder"), [(None, None), ({}, None), ({"pod": "gone"}, None), ({"pod": "b"}, "b")])
def test_the_holder_is_who_signed_and_lives(data: dict[str, str] | None, holder: str | None) -> None:
    cluster: Any = FakeCluster()
    sign(cluster, "b")
    cluster.config_maps[last_resort.HOLDER].data = data
    cluster.pods |= {"b": pod("b", 0, {"app": "steward"}), "gang": pod("gang", 1, {"app": "gang"})}
    assert other_holder(cluster, "a") == holder and other_holder(cluster, "b") is None
    cluster.config_maps[last_resort.HOLDER].data = {"pod": "gang"}
    assert other_holder(cluster, "a") is None, "no steward"


def test_what_the_api_says_of_the_holder_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise answer(403, "Forbidden")

    cluster: Any = FakeCluster()
    monkeypatch.setattr(cluster, "get", refused)
    with pytest.raises(httpx2.HTTPError):
        other_holder(cluster, "a")
