"""A steward through weather, by a virtual clock: S3, Kubernetes and AWS in memory, each away when told to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError
from lightkube.resources.core_v1 import Pod

from infra.clock import BoundedLook, Clock
from infra.cluster.gang import COMPLETION_INDEX
from infra.cluster.steward_config import STEWARD_LEASE, StewardConfig
from infra.plan.job_config import train_config
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record import lease as lease_module
from infra.record.events import CampaignState, Event
from infra.record.holder import Holder
from infra.record.lease import Lease
from infra.record.payloads.stages import StageStarted
from infra.record.store import LIVE, CampaignStore
from infra.spec.campaign import Spec
from infra.steward import archiving, attempt
from infra.steward.decide import History
from infra.steward.seeing import committed, observe
from infra.steward.steward import Steward
from tests.fake_cluster import PODS, FakeCluster, gpu_node
from tests.part import part
from tests.root import ROOT
from tests.worlds.s3 import FakeS3, Time, refusal
from trainer.contract import Phase, Status

TURN = timedelta(seconds=10)
MINUTE_S = 60.0


class Over(BaseException):
    """The story's time is over: its steward is killed, as by SIGKILL."""


@dataclass
class FakeAws:
    """EC2, EKS and Auto Scaling as one."""

    cluster: FakeCluster
    away: bool = False
    states: dict[str, str] = field(default_factory=dict)
    """Instance -> its state; running where it is not named."""
    desired: int = PODS
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Instance -> EC2's scheduled events for it."""
    ended: list[str] = field(default_factory=list)
    """Instances that were given back."""
    schedules: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> request with which EventBridge Scheduler was told of it last."""
    no_scheduler: str = ""
    """Code with which Scheduler refuses everything."""
    lost_answers: int = 0
    """So many changes of a schedule are carried out, and nobody hears of it."""

    def client(self, _: str) -> Any:
        return self

    def describe_instance_status(self, *, InstanceIds: list[str], IncludeAllInstances: bool) -> dict[str, Any]:
        self._weather()
        assert IncludeAllInstances
        named = [str(node.spec.providerID).rpartition("/")[2] for node in self.cluster.nodes.values() if node.spec]
        checks = {"SystemStatus": {"Status": "ok"}, "InstanceStatus": {"Status": "ok"}}
        return {
            "InstanceStatuses": [
                {
                    "InstanceId": one,
                    "InstanceState": {"Name": self.states.get(one, "running")},
                    "Events": self.events.get(one, []),
                    **checks,
                }
                for one in named
                if one in InstanceIds
            ]
        }

    def terminate_instance_in_auto_scaling_group(self, *, InstanceId: str, **_: Any) -> None:
        self._weather()
        self.ended.append(InstanceId)

    def get_schedule(self, *, Name: str) -> dict[str, Any]:
        self._weather()
        if self.no_scheduler or Name not in self.schedules:
            raise refusal(self.no_scheduler or "ResourceNotFoundException", 403, "GetSchedule")
        return {**self.schedules[Name], "Arn": "a", "CreationDate": "c", "ResponseMetadata": {}}

    def update_schedule(self, **request: Any) -> None:
        self._weather()
        self.schedules[request["Name"]] = request
        if self.lost_answers:
            self.lost_answers -= 1
            raise ConnectionClosedError(endpoint_url="https://scheduler")

    def describe_nodegroup(self, **_: Any) -> dict[str, Any]:
        self._weather()
        return {"nodegroup": {"scalingConfig": {"desiredSize": self.desired, "maxSize": 4, "minSize": 0}}}

    def update_nodegroup_config(self, *, scalingConfig: dict[str, int], **_: Any) -> None:
        self._weather()
        self.desired = scalingConfig["desiredSize"]
        if self.desired == 0:
            self.cluster.nodes.clear()

    def _weather(self) -> None:
        if self.away:
            raise EndpointConnectionError(endpoint_url="https://ec2")


@cache
def config() -> StewardConfig:
    document = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    recovery = {"hang_timeout": "4m", "startup_timeout": "10m", "heartbeat_timeout": "20s", "blind_timeout": "30m"}
    changes = {"rehearsal": {"faults": []}, "campaign": "story", "recovery": recovery}
    spec = Spec.model_validate(document | changes)
    plan = make_plan(spec, survey(spec))
    return StewardConfig.model_validate(
        {
            "spec": spec, "train": train_config(spec, plan, "d" * 64), "image": "i@sha256:0", "code_digest": "c",
            "image_manifest": "images/c.json", "ranks_per_node": 1, "accelerators": 0, "efa_interfaces": 0,
            "grace_seconds": 1, "deadline": Time().wall() + timedelta(hours=24), "base_usd_per_hour": Decimal("0.5"),
            "node_usd_per_hour": Decimal("0.5"), "archive": timedelta(minutes=5), "state_bucket": "state",
            "interval_and_archive": timedelta(minutes=10), "archive_bucket": "archive", "poll": TURN,
        }
    )  # fmt: skip


@dataclass
class StewardRun:
    """One campaign; its steward turns every ten seconds, and `each_turn` may change the weather."""

    time: Time
    s3: FakeS3
    cluster: FakeCluster
    aws: FakeAws
    steps: dict[int, int] = field(default_factory=dict)
    """Pod -> its step; one that is not here does not answer."""
    pace: int = 1
    """Steps that the gang makes in a turn."""
    own_clock: timedelta = timedelta()
    """How far the steward's node's own clock is ahead."""
    holder: str = "a"
    stewards: int = 0
    steward: Steward | None = None

    def store(self) -> CampaignStore:
        return CampaignStore(self.s3, "state", "story", "reader")

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.store().events() if event.kind == kind]

    def state(self) -> CampaignState:
        return self.store().state()

    def live(self) -> dict[str, Any]:
        kept = self.store().get_json(LIVE)
        assert kept is not None
        return dict(kept)

    def run(self, minutes: float, each_turn: Callable[[], None] = lambda: None) -> bool:
        """A new steward for so long, then killed; whether it came to the campaign's end before."""
        until = self.time() + 60 * minutes
        self.stewards += 1
        clock = Clock(self.time, lambda: self.time.wall() + self.own_clock)
        self.s3.heard = lambda service, date: clock.hear("S3", date)
        store = CampaignStore(self.s3, "state", "story", f"steward-{self.stewards}", now=clock.now)
        holder = Holder(user=self.holder, host="h", boot_id="b", pid_namespace="", pid=1, start_ticks=1)
        lease = store.lease(STEWARD_LEASE, timedelta(seconds=15), holder, patient=True)
        lease.acquire()

        def rest(seconds: float) -> None:
            if self.time() >= until:
                raise Over
            self.time.go(seconds)
            lease.renew()
            if self.cluster.pods and self.steps:
                self.steps = {index: step + self.pace for index, step in self.steps.items()}
            each_turn()

        logs = SimpleNamespace(follow=lambda pod, position: iter(()), ended=lambda pod: True)
        steward = Steward(config(), self.aws, self.cluster, logs, store, lease, rest, clock)  # type: ignore[arg-type]
        self.steward = steward
        steward.tiers = SimpleNamespace(tell=lambda agents: None)  # type: ignore[assignment]
        try:
            steward.run()
        except Over:
            return False
        finally:
            steward.logs._stop.set()
        return True

    def history(self) -> History:
        assert self.steward is not None
        return self.steward.attempt.history

    def probe(self, one: Pod) -> Status | None:
        assert one.metadata and one.metadata.annotations
        index = int(one.metadata.annotations[COMPLETION_INDEX])
        if index not in self.steps:
            return None
        return part(Status, phase=Phase.TRAINING, step=self.steps[index], committed_step=-1, ranks=(),
                    step_seconds=None)  # fmt: skip


def prepared(patch: pytest.MonkeyPatch, folder: Path) -> StewardRun:
    """Return a campaign after its preflight; `folder` is the shared tier, and the process is the story's until `patch`
    is undone."""
    time = Time()
    cluster = FakeCluster(nodes={f"node-{index}": gpu_node(index) for index in range(PODS)})
    steward_run = StewardRun(time, FakeS3(time), cluster, FakeAws(cluster), {0: 0, 1: 0})
    patch.setattr(lease_module, "_monotonic", time)
    patch.setattr(Lease, "_renew", lambda self: None)
    patch.setattr(observe, "_probe", steward_run.probe)
    # A thread for every look waits for a processor, where others want it, longer than the look takes.
    patch.setattr(observe, "ThreadPoolExecutor", lambda *_, **__: SimpleNamespace(map=map))
    patch.setattr(BoundedLook, "within", lambda self, seconds: self._ask())
    patch.setattr(committed, "SHARED_CHECKPOINTS", str(folder))
    patch.setattr(archiving, "record", lambda steward: None)
    patch.setattr(attempt, "keep_stacks", lambda *_: ())
    store = CampaignStore(steward_run.s3, "state", "story", "driver", now=time.wall)
    store.append(StageStarted(stage="preflight"))
    return steward_run


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StewardRun:
    return prepared(monkeypatch, tmp_path)
