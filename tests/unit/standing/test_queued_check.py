"""The health check's gang in a queue: while it waits, no clock of its start runs, and the queue's words are shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod

from infra.campaign import proving
from infra.cluster.standing.queueing import VANISHED, QueuePlace

QUOTA = "insufficient unused quota"
WAITS = QueuePlace(state="waiting", reason="Pending", message=QUOTA)
MAY_START = QueuePlace(state="admitted")
HOUR_S = 3600.0
Look = tuple[QueuePlace, list[Pod]]
"""The place in the queue after the pods."""


def pod(name: str, phase: str) -> Pod:
    state = {"Running": {"running": {}}, "Succeeded": {"terminated": {"exitCode": 0}}}[phase]
    status = {"phase": phase, "containerStatuses": [{"name": "trainer", "image": "", "imageID": "", "ready": True,
                                                     "restartCount": 0, "state": state}]}  # fmt: skip
    spec = {"nodeName": name, "containers": []}
    document: Pod = from_dict(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": status}
    )  # type: ignore[assignment]
    return document


class Check:
    """A health check of two nodes whose looks, an hour apart, are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.shown = 0.0, list[str]()
        self.looks: Iterator[Look] = iter(())
        self.place = MAY_START
        monkeypatch.setattr(proving.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(proving.time, "sleep", self.pass_an_hour)
        monkeypatch.setattr(proving.attempts, "pods", self.pods)
        monkeypatch.setattr(proving.attempts, "ask_queue", lambda *_: self.place)
        monkeypatch.setattr(proving, "warnings", lambda _: {})

    def pass_an_hour(self, _: float) -> None:
        self.now_s += HOUR_S

    def pods(self, *_: Any) -> list[Pod]:
        self.place, pods = next(self.looks)
        return pods

    def watch(self, *looks: Look, queue: str | None = "team-a") -> proving._Watch:
        self.looks = iter(looks)
        recovery = SimpleNamespace(startup_timeout=timedelta(minutes=30))
        cluster = SimpleNamespace(queue=queue, namespace="team-a")
        spec = SimpleNamespace(recovery=recovery, cluster=cluster, preflight=SimpleNamespace(dcgm_level=None))
        progress = SimpleNamespace(step=self.shown.append)
        context: Any = SimpleNamespace(spec=spec, progress=progress, deadline=datetime.now(UTC) + timedelta(days=9))
        return proving._wait(context, None, {}, proving._Watch("check", 2))  # type: ignore[arg-type]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    return Check(monkeypatch)


ENDED = [pod("a", "Succeeded"), pod("b", "Succeeded")]


def test_a_gang_that_waits_for_quota_outlives_the_startup_timeout_and_says_why(check: Check) -> None:
    watch = check.watch(*[(WAITS, [])] * 30, (MAY_START, ENDED))
    assert len(watch.ended) == 2 and watch.start_probes() == ()
    assert set(check.shown) == {f"health check: the gang waits for quota: Pending: {QUOTA}"} and len(check.shown) == 30


def test_without_a_queue_the_startup_timeout_holds(check: Check) -> None:
    watch = check.watch(*[(WAITS, [])] * 30, queue=None)
    assert len(check.shown) == 1 and len(watch.start_probes()) == 2


def test_a_check_that_is_preempted_is_that_of_the_gang_that_starts_again(check: Check) -> None:
    """The pods that the queue ended died of that and of no fault, one of them after its report."""
    first_pods = [pod("a", "Succeeded"), pod("b", "Running")]
    next_pods = [pod("c", "Succeeded"), pod("d", "Succeeded")]
    watch = check.watch(
        (MAY_START, first_pods), (WAITS, first_pods), (WAITS, []), (MAY_START, [first_pods[1], *next_pods])
    )
    assert sorted(watch.pods_by_node()) == ["c", "d"] and watch.vanished == set() and watch.start_probes() == ()


STOPPED = QueuePlace(state="stopped", reason="AdmissionCheck", message="the quota is another team's")


@pytest.mark.parametrize(
    ("place", "words"), [(QueuePlace(state="vanished"), VANISHED), (STOPPED, "the quota is another team's")]
)
def test_a_check_that_kueue_deletes_or_never_starts_ends_with_that_as_its_reason(
    check: Check, place: QueuePlace, words: str
) -> None:
    watch = check.watch((WAITS, []), (place, []))
    assert all(words in probe.seen for probe in watch.start_probes()) and len(watch.start_probes()) == 2
