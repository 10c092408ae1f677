"""The steward's silence on the emulated AWS: the Scheduler's own clock, the steward's own role and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any

import pytest

from infra.cluster.steward_config import LONGEST_SILENCE
from infra.rehearsal.aws import schedules
from infra.spec.names import Names
from infra.stack.access import policies
from infra.stack.access.ceiling import ceiling
from infra.stack.guard import notice, scale_to_zero
from infra.steward.silence import SilenceSchedules
from tests.example import example_spec
from tests.rehearsal.aws_account import code_of, until
from tests.rehearsal.rehearsal.aws.aws_cluster import assume, trust
from tests.worlds.account_site import AccountSite, fake_site, pitch_gang

SPEC = example_spec(campaign="quiet")
NAMES = Names("quiet")
GROUP = {"clusterName": NAMES.cluster, "nodegroupName": NAMES.gpu_group}
MINUTE = timedelta(minutes=1)
OFF = {"Mode": "OFF"}


class SchedulersClock(datetime):
    """The time of the emulated Scheduler alone."""

    ahead = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + cls.ahead


@dataclass
class QuietCampaign:
    site: AccountSite
    silence: SilenceSchedules
    steward: Any
    """The steward's session."""
    role: str
    """ARN of the schedules' role."""

    def go(self, span: timedelta) -> None:
        """Let time pass, until the Scheduler has acted on all that was due by then."""
        SchedulersClock.ahead += span
        scheduler, now = self.site.client("scheduler"), SchedulersClock.now(UTC)
        name = f"canary-{now:%H%M%S%f}"
        told = {"TopicArn": SPEC.notices_topic, "Message": name}
        target = {"Arn": "arn:aws:scheduler:::aws-sdk:sns:publish", "RoleArn": self.role, "Input": json.dumps(told)}
        scheduler.create_schedule(
            Name=name, ScheduleExpression=f"at({now:%Y-%m-%dT%H:%M:%S})", Target=target, FlexibleTimeWindow=OFF
        )
        until(lambda: any(name in one["schedule"] for one in self.fired()), "the canary")

    def fired(self) -> list[dict[str, Any]]:
        path = self.site.world.work / "aws" / schedules.RUNS
        whole = [line for line in path.read_text().splitlines(True) if line.endswith("\n")] if path.exists() else []
        return [json.loads(line) for line in whole]

    def struck(self) -> dict[str, datetime]:
        """Name of each schedule of the silence that fired -> when, by the Scheduler's clock; each once, unrefused."""
        ours = [one for one in self.fired() if one["schedule"].rpartition("/")[2] in NAMES.silence_schedules]
        assert all(one["error"] is None and one["attempt"] == 0 for one in ours), ours
        times = {one["schedule"].rpartition("/")[2]: datetime.fromisoformat(one["time"]) for one in ours}
        assert len(times) == len(ours)
        return times

    def size(self) -> int:
        group = self.site.client("eks").describe_nodegroup(**GROUP)["nodegroup"]
        return int(group["scalingConfig"]["desiredSize"])


@pytest.fixture
def quiet(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuietCampaign]:
    monkeypatch.setattr(schedules, "datetime", SchedulersClock)
    monkeypatch.setattr(SchedulersClock, "ahead", timedelta())
    with fake_site(tmp_path_factory.mktemp("quiet")) as site:
        pitch_gang(site, NAMES)
        iam = site.client("iam")
        boundary = iam.create_policy(
            PolicyName="boundary", PolicyDocument=policies.document(ceiling(policies.place(SPEC)))
        )["Policy"]["Arn"]
        arns = {}
        for name, service, rights in (
            ("guard", "scheduler", policies.guard(SPEC)), ("steward", "pods.eks", policies.steward(SPEC))
        ):  # fmt: skip
            made = iam.create_role(
                RoleName=NAMES.role(name), AssumeRolePolicyDocument=trust(f"{service}.amazonaws.com"),
                PermissionsBoundary=boundary,
            )  # fmt: skip
            iam.put_role_policy(RoleName=NAMES.role(name), PolicyName="own", PolicyDocument=policies.document(rights))
            arns[name] = made["Role"]["Arn"]
        site.client("sns").create_topic(Name=SPEC.notices_topic.rpartition(":")[2])
        nodes, people = NAMES.silence_schedules
        for name, call, text in (
            (nodes, "eks:updateNodegroupConfig", scale_to_zero(NAMES, NAMES.gpu_group)),
            (people, "sns:publish", notice(SPEC, "its steward is silent", "It is.")),
            (NAMES.schedule, "eks:updateNodegroupConfig", scale_to_zero(NAMES, NAMES.gpu_group)),
        ):
            site.client("scheduler").create_schedule(
                Name=name, State="DISABLED", ScheduleExpression="at(2035-01-01T00:00:00)", FlexibleTimeWindow=OFF,
                Target={"Arn": f"arn:aws:scheduler:::aws-sdk:{call}", "RoleArn": arns["guard"], "Input": text},
            )  # fmt: skip
        session = assume(site, arns["steward"], "pod")
        account: Any = SimpleNamespace(client=lambda service: site.client(service, session))
        clock: Any = SimpleNamespace(
            now=lambda: SchedulersClock.now(UTC), monotonic=lambda: SchedulersClock.now(UTC).timestamp()
        )
        lease: Any = SimpleNamespace(check=lambda: None)
        yield QuietCampaign(site, SilenceSchedules(account, NAMES, lease, clock), session, arns["guard"])


def test_nodes_stay_as_long_as_the_steward_postpones_and_go_once_when_it_falls_silent(quiet: QuietCampaign) -> None:
    for _ in range(6):
        quiet.silence.postpone()
        assert quiet.silence.troubles() == ()
        quiet.go(13 * MINUTE)
    assert quiet.size() == 2 and not quiet.struck(), "78 minutes, more than one bound"
    quiet.silence.postpone()
    last = SchedulersClock.now(UTC)
    quiet.go(LONGEST_SILENCE - MINUTE)
    assert quiet.size() == 2 and not quiet.struck()
    quiet.go(2 * MINUTE)
    until(lambda: len(quiet.struck()) == 2 and quiet.size() == 0, "the nodes are at zero, and people are told")
    assert all(last + LONGEST_SILENCE - MINUTE < moment for moment in quiet.struck().values())
    until(lambda: not quiet.site.alive(), "the machines end")
    quiet.go(3 * LONGEST_SILENCE)
    assert len(quiet.struck()) == 2


def test_once_it_is_off_nothing_fires_and_what_it_would_do_stays(quiet: QuietCampaign) -> None:
    quiet.silence.postpone()
    quiet.silence.switch_off()
    quiet.go(2 * LONGEST_SILENCE)
    assert quiet.size() == 2 and not quiet.struck()
    scheduler = quiet.site.client("scheduler")
    for name in NAMES.silence_schedules:
        one = scheduler.get_schedule(Name=name)
        assert one["State"] == "DISABLED" and one["Target"]["RoleArn"] == quiet.role and one["Target"]["Input"]


def test_a_steward_moves_its_own_schedules_and_neither_another_nor_to_another_role(quiet: QuietCampaign) -> None:
    scheduler = quiet.site.client("scheduler", quiet.steward)

    def moved(name: str, **target: str) -> dict[str, Any]:
        one = quiet.site.client("scheduler").get_schedule(Name=name)
        kept = {key: one[key] for key in ("Name", "ScheduleExpression", "FlexibleTimeWindow", "State")}
        return {**kept, "Target": one["Target"] | target}

    own, people = NAMES.silence_schedules
    for name in (own, people):
        assert scheduler.update_schedule(**moved(name))["ScheduleArn"].endswith(name)
    assert code_of(lambda: scheduler.update_schedule(**moved(NAMES.schedule))) == "AccessDeniedException"
    node = quiet.site.client("iam").get_role(RoleName=f"{NAMES.campaign}-cluster")["Role"]["Arn"]
    assert code_of(lambda: scheduler.update_schedule(**moved(own, RoleArn=node))) == "AccessDeniedException"
    assert code_of(lambda: scheduler.delete_schedule(Name=own)) == "AccessDeniedException"
    assert code_of(lambda: scheduler.list_schedules()) == "AccessDeniedException"
