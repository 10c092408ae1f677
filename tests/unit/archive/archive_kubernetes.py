"""The part of Kubernetes that the archive's Job uses, in memory; its controllers act while the Job is waited for."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap

from infra.archive import archive_job
from infra.archive.archive import ArchiveConfig
from tests.fake_cluster import answer

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
CONFIG = ArchiveConfig(
    campaign="tiny", identity="own", committed_step=40, region="r", state_bucket="s", archive_bucket="a",
    image_manifest="images/i.json",
)  # fmt: skip
VERDICT = {"step": 40, "proof": "recorded in training"}


class Kubernetes:
    """The part of lightkube's client that is used; `later` says, turn by turn, what its controllers did meanwhile."""

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = None
        self.pods: list[Any] = []
        self.config: dict[str, str] | None = None
        self.calls: list[str] = []
        self.refuses: dict[str, int] = {}
        self.cut: tuple[str, ...] = ()
        self.later: list[Callable[[], None]] = []
        self.leaves_at_once = True

    def _say(self, call: str) -> None:
        self.calls.append(call)
        if call in self.cut:
            raise ConnectionError(call)
        if call in self.refuses:
            raise answer(self.refuses[call], call)

    def create(self, thing: Any) -> None:
        if isinstance(thing, ConfigMap):
            self._say("create config")
            self.config = thing.data
            return
        self._say("create job")
        if self.job is not None:
            raise answer(409, "AlreadyExists")
        self.job = thing.to_dict()

    def get(self, kind: type, name: str) -> Any:
        assert (kind, name) == (Job, "archive")
        self._say("get job")
        if self.job is None:
            raise answer(404, "NotFound")
        return from_dict(self.job)

    def delete(self, kind: type, name: str, cascade: Any) -> None:
        assert (kind, name, cascade.value) == (Job, "archive", "Background")
        self._say("delete job")
        if self.job is None:
            raise answer(404, "NotFound")
        if self.leaves_at_once:
            self.job = None
        else:
            self.job["metadata"]["deletionTimestamp"] = "2026-11-22T12:00:00Z"

    def list(self, kind: type, labels: dict[str, str]) -> list[Any]:
        assert labels == {"bivouac.dev/role": "archive"}
        return [from_dict(pod) for pod in self.pods]

    def status(self, **counts: int) -> None:
        assert self.job is not None
        self.job["status"] = counts

    def succeeds(self, pod_name: str = "archive-1", failed: int = 0) -> None:
        """Its last pod ends with a verdict, after so many that failed."""
        self.status(succeeded=1, failed=failed)
        self.pods = [pod(pod_name, "Succeeded", json.dumps(VERDICT), "2026-11-22T12:00:00Z")]

    def vanishes(self) -> None:
        self.job = None

    def pause(self) -> None:
        assert self.later, "it waits, and nothing will happen any more"
        self.later.pop(0)()


def pod(name: str, phase: str, said: str | None = None, ended: str | None = None, why: str = "") -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase}
    if said is not None:
        end = {"exitCode": 0, "message": said} | ({"finishedAt": ended} if ended else {})
        status["containerStatuses"] = [
            {
                "name": "archive", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
                "state": {"terminated": end},
            }
        ]  # fmt: skip
    if why:
        status["conditions"] = [
            {"type": "Ready", "status": "False", "message": "not ready"},
            {"type": "PodScheduled", "status": "False", "message": why},
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "status": status}


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def kube() -> Kubernetes:
    return Kubernetes()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(archive_job, "time", clock)
    return clock


def bounds(**changes: Any) -> archive_job.Bounds:
    within = {"start_within": timedelta(minutes=10), "end_within": timedelta(minutes=60)}
    return archive_job.Bounds(**{**within, "end_by": NOON, "cure": "by hand", "now": lambda: NOON} | changes)  # type: ignore[arg-type]


def run(kube: Any, followed: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    job = archive_job.manifest(CONFIG, "image@sha256:1", 8)
    guard = changes.pop("guard", lambda: None)
    follow = (followed if followed is not None else []).append
    return archive_job.run(
        kube, CONFIG, job, {"train.json": '{"steps": 100}'}, bounds(**changes), guard, kube.pause, follow
    )
