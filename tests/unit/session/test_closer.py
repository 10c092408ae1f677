"""When the steward asks for the closer: whenever nobody drives what is over and safe, and not more often."""

from __future__ import annotations

import itertools
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra.record.holder import Holder
from infra.record.lease import DRIVER_LEASE, Lease
from infra.record.payloads import payload_of
from infra.record.payloads.attempts import AttemptLaunched, NodesAtZero
from infra.record.payloads.stages import Attached, Detached, StageStarted
from infra.record.payloads.training import TrainingFinished
from infra.record.store import CampaignStore
from infra.session import closer
from tests.worlds.s3 import FakeS3, Time, refusal

CODE = "c" * 64
TTL = timedelta(seconds=30)
ELSEWHERE = Holder(user="me", host="laptop", boot_id="x", pid_namespace="", pid=1, start_ticks=1)


class Ended(Exception):
    """The cluster is gone, and the steward with it."""


class ClosersRecord:
    def __init__(self, *archived: tuple[str, dict[str, Any]]) -> None:
        self.time = Time()
        self.s3: Any = FakeS3(self.time)
        self.store = CampaignStore(self.s3, "state", "train", "steward")
        self.store.append(StageStarted(stage="check"))
        self.store.append(AttemptLaunched(attempt=1, committed_step=-1))
        self.store.append(TrainingFinished(outcome="done", why="", committed_step=60))
        for kind, data in archived:
            self.store.append(payload_of(kind, data))
        self.store.append(NodesAtZero(group="gpu"))
        self.store.append(Detached(holder="me", deadline=""))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lease, "_renew", lambda self: None)
            lease = self.store.lease(DRIVER_LEASE, TTL, ELSEWHERE)
            lease.acquire()
            lease.release()
        self.asked: list[tuple[float, dict[str, Any]]] = []
        self.refused = False
        self.account: Any = SimpleNamespace(client=lambda service: {"codebuild": self}[service])

    def start_build(self, **request: Any) -> dict[str, Any]:
        self.asked.append((self.time.seconds - 1000.0, request))
        if self.refused:
            raise refusal("AccessDeniedException", 400, "StartBuild")
        return {"build": {"id": "bivouac_closer:1"}}

    def attend(self, seconds: float) -> None:
        until = self.time.seconds + seconds

        def rest(pause: float) -> None:
            self.time.go(pause)
            if self.time.seconds > until:
                raise Ended

        with pytest.raises(Ended):
            closer.attend(self.account, self.store, CODE, rest, self.time)


ARCHIVED = ("archive.verified", {"manifest": "m", "step": 60})


def test_the_steward_asks_at_once_when_nobody_drives_and_again_after_ten_minutes() -> None:
    world = ClosersRecord(ARCHIVED)
    world.attend(1300)
    variables = [
        {"name": "BIVOUAC_CAMPAIGN", "value": "train", "type": "PLAINTEXT"},
        {"name": "BIVOUAC_CODE", "value": CODE, "type": "PLAINTEXT"},
    ]
    wanted = {"projectName": "bivouac_closer", "environmentVariablesOverride": variables}
    assert [request for _, request in world.asked] == [wanted] * 3
    times = [at for at, _ in world.asked]
    assert times[0] == 0 and all(600 < later - at <= 610 for at, later in itertools.pairwise(times))


def test_a_driver_or_a_closer_at_work_is_not_disturbed_and_one_that_died_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ClosersRecord(ARCHIVED)
    monkeypatch.setattr(Lease, "_renew", lambda self: None)
    world.store.append(Attached(holder="me"))
    world.store.lease(DRIVER_LEASE, TTL, ELSEWHERE).acquire()
    world.attend(60)
    (at,) = [at for at, _ in world.asked]
    assert 30 <= at <= 40, "once its lease had run out"


def test_what_a_person_interrupted_is_left_to_them() -> None:
    world = ClosersRecord(ARCHIVED)
    world.store.append(Attached(holder="me"))
    world.attend(100)
    assert world.asked == []


def test_a_refusal_ends_nothing_and_is_not_repeated_every_moment() -> None:
    world = ClosersRecord(ARCHIVED)
    world.refused = True
    world.attend(700)
    assert len(world.asked) == 2


def test_nobody_is_asked_to_end_what_is_not_archived() -> None:
    world = ClosersRecord(("archive.failed", {"error": "AccessDenied"}))
    closer.attend(world.account, world.store, CODE, lambda _: pytest.fail("it waits"), world.time)
    assert world.asked == []
