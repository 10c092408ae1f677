"""A campaign's record, node groups and clock without its people: what the closer's half-hourly builds make of it.

The record, the meter, the judgement and the give-back are the product's own; EKS, EC2, the engine's teardown and the
certificate are fakes. Whoever asks for the cluster's API fails: no spec lets CodeBuild in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console

from infra.campaign import closing, launch_budget
from infra.cli.end import close
from infra.cluster.steward_config import LEASE_TTL, STEWARD_LEASE
from infra.engine import nodegroups
from infra.inventory.stakes import refuse_unproven
from infra.plan.plan import Plan, make_plan
from infra.plan.survey import survey
from infra.record.holder import Holder
from infra.record.identity import read_identity
from infra.record.lease import DRIVER_LEASE, Lease
from infra.record.payloads.stages import Certified, StageFinished, StageStarted
from infra.record.store import CampaignStore
from infra.session.session import CLOCK, PLAN, SPEC
from infra.spec.campaign import Spec
from infra.spec.names import Names
from infra.stack.closer import EVERY
from infra.steward.silence import SilenceSchedules
from tests.root import ROOT
from tests.worlds.s3 import NOON, FakeS3, Time, refusal

TTL = timedelta(seconds=30)
LAPTOP = Holder(user="me", host="laptop", boot_id="x", pid_namespace="", pid=1, start_ticks=1)
POD = Holder(user="steward", host="pod", boot_id="y", pid_namespace="", pid=1, start_ticks=1)
SPEC_FILE = ROOT / "infra/campaigns/first-contact.yaml"
FIRST_CONTACT = Spec.model_validate(yaml.safe_load(SPEC_FILE.read_text()))
FIRST_PLAN: Plan = make_plan(FIRST_CONTACT, survey(FIRST_CONTACT))


class FakeScheduler:
    """EventBridge Scheduler with the stack's schedules of launch and silence, and the deadline's."""

    def __init__(self, names: Names, deadline: datetime) -> None:
        to_zero = {"ClusterName": names.cluster, "NodegroupName": names.gpu_group,
                   "ScalingConfig": {"MinSize": 0, "DesiredSize": 0}}  # fmt: skip
        nodes = {"Arn": "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig", "Input": json.dumps(to_zero)}
        people = {"Arn": "arn:aws:scheduler:::aws-sdk:sns:publish", "Input": "{}"}
        at = f"at({deadline:%Y-%m-%dT%H:%M:%S})"
        self.schedules: dict[str, dict[str, Any]] = {}
        for kind in ("deadline", "launch", "silence"):
            for name, target in ((kind, nodes), (f"{kind}-notice", people)):
                whole = f"bivouac-{names.campaign}-{name}"
                state = "ENABLED" if kind == "deadline" else "DISABLED"
                self.schedules[whole] = {"Name": whole, "State": state, "ScheduleExpression": at, "Target": target}

    def get_schedule(self, Name: str) -> dict[str, Any]:
        return {**self.schedules[Name], "Arn": "a", "ResponseMetadata": {}}

    def update_schedule(self, **request: Any) -> None:
        self.schedules[request["Name"]] = request

    def due(self, now: datetime) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and target of the schedules that fire, each once for its time."""
        for name, one in self.schedules.items():
            at = datetime.strptime(one["ScheduleExpression"], "at(%Y-%m-%dT%H:%M:%S)").replace(tzinfo=UTC)
            if one["State"] == "ENABLED" and at <= now and not one.get("fired"):
                one["fired"] = True
                yield name, one["Target"]


class UnattendedCampaign:
    """EKS and EC2 of one cluster, whose instances follow their group's size at once, unless they are `stuck`."""

    def __init__(self, patch: pytest.MonkeyPatch, spec: Spec = FIRST_CONTACT) -> None:
        self.time, self.spec, self.names = Time(), spec, Names(spec.campaign)
        s3: Any = FakeS3(self.time)
        self.store = CampaignStore(s3, "state", spec.campaign, "driver-1", now=self.time.wall)
        self.deadline = NOON + spec.money.deadline
        self.sizes = {self.names.system_group: 1, self.names.gpu_group: 0}
        self.stuck: set[str] = set()
        self.refusals: list[str] = []
        """Codes with which EKS answers the next changes of size."""
        self.at_zero: datetime | None = None
        self.terminated, self.ends, self.said = list[str](), 0, StringIO()
        self.scheduler, self.fired = FakeScheduler(self.names, self.deadline), list[str]()
        self._patch(patch)
        self.silence = self._silence()
        self.store.put_json(SPEC, spec.model_dump(mode="json"))
        self.store.put_json(PLAN, FIRST_PLAN.model_dump(mode="json"))
        self.store.put_json(CLOCK, {"started_at": NOON.isoformat(), "deadline": self.deadline.isoformat()})

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        clock = SimpleNamespace(now=lambda _: self.time.wall())
        account: Any = SimpleNamespace(
            client=lambda service: {"eks": self, "ec2": self, "scheduler": self.scheduler}[service]
        )
        self.account = account
        patch.setattr(Lease, "_renew", lambda lease: None)
        for module in (close, closing, launch_budget):
            patch.setattr(module, "datetime", clock)
        patch.setattr(nodegroups, "turns", lambda seconds: range(2))
        patch.setattr(close, "record_of", lambda campaign, region: self.store)
        patch.setattr(close, "Account", lambda region: account)
        patch.setattr(close, "attend", lambda store, console: 0)
        patch.setattr(close, "target", SimpleNamespace(have_engine=lambda: None, site_facts=lambda: None))
        patch.setattr(close, "opened", self._opened)
        patch.setattr(close, "end", self._end)
        patch.setattr("infra.cluster.kubernetes._server", lambda *_: pytest.fail("the closer asked the cluster's API"))

    # EKS and EC2

    def describe_nodegroup(self, clusterName: str, nodegroupName: str) -> dict[str, Any]:
        if nodegroupName not in self.sizes:
            raise refusal("ResourceNotFoundException", 404, "DescribeNodegroup")
        size = self.sizes[nodegroupName]
        return {"nodegroup": {"scalingConfig": {"minSize": 0, "maxSize": 9, "desiredSize": size}}}

    def update_nodegroup_config(self, clusterName: str, nodegroupName: str, scalingConfig: dict[str, int]) -> None:
        if self.refusals:
            raise refusal(self.refusals.pop(0), 403, "UpdateNodegroupConfig")
        self.size(nodegroupName, scalingConfig["desiredSize"])

    def size(self, group: str, count: int) -> None:
        self.sizes[group] = count
        if group == self.names.gpu_group:
            self.at_zero = None if count else self.at_zero or self.time.wall()

    def get_paginator(self, operation: str) -> Any:
        assert operation == "describe_instances"
        return SimpleNamespace(paginate=self._pages)

    def _pages(self, Filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        assert {"Name": "tag:eks:cluster-name", "Values": [self.names.cluster]} in Filters
        of_groups = [(f"{group}-{index}", group) for group, size in self.sizes.items() for index in range(size)]
        for id, group in (*of_groups, *((id, self.names.gpu_group) for id in sorted(self.stuck))):
            one = {"InstanceId": id, "Tags": [{"Key": "eks:nodegroup-name", "Value": group}]}
            yield {"Reservations": [{"Instances": [one]}]}

    def terminate_instances(self, InstanceIds: list[str]) -> None:
        self.terminated += InstanceIds
        self.stuck -= set(InstanceIds)

    # The driver, the steward, and the closer's teardown

    @contextmanager
    def _opened(self, spec: Spec, plan: Plan, *_: object) -> Iterator[Any]:
        lease = self.store.lease(DRIVER_LEASE, TTL, Holder.this_process())
        lease.acquire()
        try:
            yield SimpleNamespace(store=self.store, state=self.store.state, enters_cluster=True)
        finally:
            lease.release()

    def _end(self, context: Any) -> None:
        """What `down` does, as far as this record lets it."""
        self.ends += 1
        assert not context.enters_cluster, "the closer would ask the cluster's API"
        assert self.gpu_nodes() == 0, "the nodes go first"
        refuse_unproven(self.store.state(), self.store.campaign, read_identity(self.store))
        self.store.append(StageStarted(stage="teardown"))
        self.store.append(StageFinished(stage="teardown", seconds=1.0))
        self.store.append(Certified(clean=True, found=[], could_not_look=[]))
        self.store.append(StageFinished(stage="report", seconds=1.0))

    def gpu_nodes(self) -> int:
        return self.sizes[self.names.gpu_group] + len(self.stuck)

    def hold(self, role: str, holder: Holder, ttl: timedelta) -> Lease[Any]:
        lease = self.store.lease(role, ttl, holder)
        lease.acquire()
        return lease

    def context(self) -> Any:
        return SimpleNamespace(
            spec=self.spec, plan=FIRST_PLAN, store=self.store, deadline=self.deadline, guard=lambda: None,
            account=self.account, names=self.names, state=self.store.state,
        )  # fmt: skip

    def drive(self, *steps: Callable[[UnattendedCampaign], None], minutes: float = 2.0) -> None:
        """A driver that lives for some minutes, then takes these steps, and dies at once after the last."""
        self.time.go(60 * minutes)
        for step in steps:
            self.hold(DRIVER_LEASE, LAPTOP, TTL)
            step(self)
            self.time.go(TTL.total_seconds() + 1)

    def steward(self) -> None:
        """A turn of the steward."""
        self.hold(STEWARD_LEASE, POD, LEASE_TTL)
        self.silence.postpone()

    def restart(self) -> None:
        """Another steward in the place of this one."""
        self.silence = self._silence()
        self.steward()

    def _silence(self) -> SilenceSchedules:
        lease, clock = (SimpleNamespace(check=lambda: None), SimpleNamespace(monotonic=self.time, now=self.time.wall))
        return SilenceSchedules(self.account, self.names, lease, clock)  # type: ignore[arg-type]

    def look(self) -> None:
        """One build of the closer."""
        close.close_command(self.store.campaign, "us-east-1", Console(file=self.said, width=500))

    def nobody(self, looks: int, refused: int = 0, first: timedelta = EVERY) -> None:
        """Let the schedule fire so often, at `first` from now, and the first builds be refused."""
        for number in range(looks):
            self.time.go((EVERY if number else first).total_seconds())
            if number >= refused:
                self.look()

    def without_builds(self, longest: timedelta, each_minute: Callable[[], None] = lambda: None) -> None:
        """Let only AWS's own schedules act for so long, each at its minute."""
        end = self.time.wall() + longest
        while self.time.wall() < end:
            self.time.go(60)
            for name, target in self.scheduler.due(self.time.wall()):
                self.fired.append(name)
                if target["Arn"].endswith(":eks:updateNodegroupConfig"):
                    request = json.loads(target["Input"])
                    assert request["ClusterName"] == self.names.cluster
                    self.size(request["NodegroupName"], request["ScalingConfig"]["DesiredSize"])
            each_minute()

    def spent(self) -> Decimal:
        return closing.spent_usd(self.store, FIRST_PLAN, self.time.wall())
