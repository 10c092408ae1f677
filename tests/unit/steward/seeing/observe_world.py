"""Two nodes and a gang as the steward looks at them, by a virtual clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod

from infra.clock import Clock
from infra.cluster.fitness import NodeFacts
from infra.cluster.gang import COMPLETION_INDEX
from infra.record.meter import read
from infra.steward.decide import Observation, PodView
from infra.steward.seeing import observe
from infra.steward.seeing.observe import Observer
from infra.steward.seeing.sources import Sources
from tests.part import part
from tests.unit.steward.steward_story import config
from tests.worlds.s3 import Time
from trainer.contract import Phase, RankStatus, Status

ENDED = datetime(2026, 11, 22, 11, 59, tzinfo=UTC)
HEARTBEAT_S = config().spec.recovery.heartbeat_timeout.total_seconds()
BASE, NODE = config().base_usd_per_hour, config().node_usd_per_hour


def pod(
    index: int = 0, phase: str | None = "Running", ip: str | None = "10.0.0.1", state: Any = None, **ended: Any
) -> Pod:
    """`state`: its container's; `ended`: how that ended."""
    end = {"terminated": {"exitCode": 0, "finishedAt": ENDED.isoformat(), **ended}}
    state = state or (end if ended else {"running": {}})
    container = {"name": "t", "image": "", "imageID": "", "ready": True, "restartCount": 0, "state": state}
    return from_dict(  # type: ignore[return-value]
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"gang-{index}", "annotations": {COMPLETION_INDEX: str(index)}},
            "spec": {"containers": [], "nodeName": f"node-{index}"},
            "status": {"phase": phase, "podIP": ip, "containerStatuses": [container]},
        }
    )  # fmt: skip


def node(index: int, **changes: Any) -> NodeFacts:
    base = {"name": f"node-{index}", "instance": f"i-{index}", "ready": True, "quarantined": False}
    return NodeFacts.model_validate(base | {"instance_state": "running", "accelerators": 8} | changes)


class ObservedGang:
    """Two nodes and a gang, by a virtual clock; `steps`: pod -> its step, one that is not here does not answer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.time, self.pods, self.nodes = Time(), [pod(0), pod(1)], [node(0), node(1)]
        self.steps: dict[int, int] = {0: 0, 1: 0}
        self.generations: dict[int, int] = {}
        self.away, self.asked_ec2, self.labels = False, list[bool](), dict[str, str]()
        self.not_told: Exception | None = None
        patch.setattr(observe, "_probe", self._probe)
        patch.setattr(observe, "ThreadPoolExecutor", lambda *_, **__: SimpleNamespace(map=map))
        patch.setattr(observe.attempts, "pods", self._pods)
        self.sources = Sources(self.time)
        clock = Clock(self.time, self.time.wall)
        self.reading = replace(read((), (), self.time.wall()), estimated={"before": Decimal(5)})
        self.observer = Observer(config(), self, self, lambda: self.reading, clock, self.sources)  # type: ignore[arg-type]
        self.observer.begin_attempt(1)

    def facts(self, ask_ec2: bool) -> tuple[NodeFacts, ...]:
        self._weather()
        self.asked_ec2.append(ask_ec2)
        return tuple(self.nodes)

    def _pods(self, client: Any, labels: dict[str, str]) -> list[Pod]:
        self._weather()
        self.labels = labels
        return list(self.pods)

    def _weather(self) -> None:
        if self.away:
            raise httpx2.ConnectError("connection refused")

    def _probe(self, one: Pod) -> Status | None:
        assert one.metadata and one.metadata.annotations
        index = int(one.metadata.annotations[COMPLETION_INDEX])
        if (step := self.steps.get(index)) is None:
            return None
        generation = self.generations.get(index, 0)
        ranks = (RankStatus(rank=index, alive=True, step=step, heartbeat_age_s=1.5),)
        return part(Status, phase=Phase.SAVING, step=step, committed_step=step - 5, ranks=ranks, generation=generation)

    def look(self, after_s: float = 10.0, in_flight: bool = True, **more: Any) -> Observation:
        self.time.go(after_s)
        return self.observer.observe(
            more.get("attempt", 1), in_flight, 7, more.get("stop", False), more.get("held"), more.get("gang_nodes", 0)
        )

    def view(self, index: int, after_s: float = 10.0) -> PodView:
        return next(one for one in self.look(after_s).pods if one.index == index)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ObservedGang:
    return ObservedGang(monkeypatch)


def seconds(lasts: timedelta | None) -> float | None:
    return None if lasts is None else lasts.total_seconds()
