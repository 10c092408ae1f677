"""When nodes are given back without a record, and who may do it."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from botocore.exceptions import EndpointConnectionError

from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL
from infra.cluster.kubernetes import JobSet
from infra.errors import LeaseLost, LeaseUnproven, PermanentError
from infra.steward import last_resort
from infra.steward.last_resort import give_back, other_holder, sign
from tests.fake_cluster import FakeCluster, answer, pod

FAR = EndpointConnectionError(endpoint_url="https://ec2")
MINUTE = timedelta(minutes=1)


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
        given: Any = (self.cluster, self, self, JobSet, "story", 60.0, self.pause, "no record")
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
    sign(resort.cluster, "steward", "story")  # type: ignore[arg-type]
    with pytest.raises(LeaseLost, match=r"another steward has the campaign.*steward"):
        resort.give_back()
    assert not resort.desired and not resort.cluster.writes
    sign(resort.cluster, os.uname().nodename, "story")  # type: ignore[arg-type]
    assert resort.give_back() and resort.desired == [0]


def test_where_kubernetes_cannot_name_the_holder_nothing_is_given_back(resort: Resort) -> None:
    resort.unproven, resort.cluster.away = True, True
    assert resort.give_back() is False and not resort.desired


def test_the_mark_of_an_earlier_version_is_taken_over_and_another_campaigns_is_not(resort: Resort) -> None:
    sign(resort.cluster, "steward", "story")  # type: ignore[arg-type]
    metadata = resort.cluster.config_maps[last_resort.HOLDER].metadata
    assert metadata is not None
    metadata.labels = {}
    sign(resort.cluster, "steward-2", "story")  # type: ignore[arg-type]
    assert resort.cluster.config_maps[last_resort.HOLDER].data == {"pod": "steward-2"}
    with pytest.raises(PermanentError, match="not the campaign's"):
        sign(resort.cluster, "steward-3", "other")  # type: ignore[arg-type]


def test_a_proven_lease_asks_nobody(resort: Resort) -> None:
    sign(resort.cluster, "steward", "story")  # type: ignore[arg-type]
    assert resort.give_back() and resort.desired == [0]


@pytest.mark.parametrize(("data", "holder"), [(None, None), ({}, None), ({"pod": "gone"}, None), ({"pod": "b"}, "b")])
def test_the_holder_is_who_signed_and_lives(data: dict[str, str] | None, holder: str | None) -> None:
    cluster: Any = FakeCluster()
    sign(cluster, "b", "story")
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
