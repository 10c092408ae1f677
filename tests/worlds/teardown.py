"""What a teardown calls, by a virtual clock and without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.campaign import teardown
from infra.engine.failures import EngineFailed, ResourceFailure
from infra.errors import LeaseLost
from infra.kinds import Remain
from infra.record.events import CampaignState, Stage
from infra.record.payloads.attempts import AttemptLaunched, AttemptRecord
from infra.record.payloads.outputs import TeardownOutput
from infra.spec.names import Names
from tests.worlds.progress import SilentProgress

ATTEMPT = AttemptRecord(launched=AttemptLaunched(attempt=1), launched_at=datetime(2026, 1, 1, tzinfo=UTC))
TRAINED = CampaignState(begun_with=Stage.CHECK, attempts=(ATTEMPT,))
NOTHING_TOLD = CampaignState()
NEVER_LAUNCHED = CampaignState(begun_with=Stage.CHECK)
SUBNET, GROUP = (
    f"urn:pulumi:train::bivouac::{kind}::gpu" for kind in ("aws:ec2/subnet:Subnet", "aws:eks/nodeGroup:NodeGroup")
)
HELD = "DependencyViolation: it has dependencies"
THROTTLED = "Throttling: Rate exceeded"
DENIED = "AccessDenied: you may not"
EXPIRED = "ExpiredToken: renew it"


def failed(*words: str, urn: str = SUBNET) -> EngineFailed:
    return EngineFailed("pulumi destroy", "train", tuple(ResourceFailure(urn, word) for word in words), "words")


class FakedTeardown:
    """What a teardown calls, by a virtual clock. `tries`: what each destroy ends with; the last stands for the rest."""

    def __init__(self, patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.now, self.did, self.notes, self.steps = 0.0, list[str](), list[str](), list[str]()
        self.recorded, self.state_now = list[str](), NEVER_LAUNCHED
        self.tries: list[Exception | None] = [None]
        self.held = [7]
        """Resources in the stack before each try; the last stands for the rest."""
        self.paused = list[float]()
        self.may_hold, self.lost_after = False, 10**6
        self.builders: list[list[str]] = [[]]
        self.left: tuple[str, ...] = ()
        self.sights: list[tuple[str, ...]] = [()]
        self.rows: tuple[Remain, ...] = ()
        self.frozen = set[str]()
        self.bill: str | None = None
        self.watch = SimpleNamespace(open={})
        self.store = SimpleNamespace(
            append=lambda payload: self.recorded.append(payload.kind), prefix="campaigns/train"
        )
        self.progress = SilentProgress(self.notes, self.steps)
        money = SimpleNamespace(freeze_roles=("trainers", "builders"))
        self.spec = SimpleNamespace(campaign="train", account="123456789012", region="us-east-1", money=money)
        self.account = SimpleNamespace(client=lambda service: {"iam": self}[service], region="us-east-1")
        self.names, self.results, self.operator_arn = Names("train"), tmp_path, "arn:me"
        self.exceptions = SimpleNamespace(NoSuchEntityException=type("NoSuchEntityException", (ClientError,), {}))
        patch.setattr(teardown, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(teardown, "read_identity", lambda store: None)
        patch.setattr(teardown, "may_hold_checkpoints", lambda account, campaign: self.may_hold)
        patch.setattr(teardown, "end_builders", lambda *_: self.did.append("builders") or self.builders[0])
        patch.setattr(teardown, "living_builders", lambda *_: self._next(self.builders))
        patch.setattr(teardown, "Engine", lambda context, work: self)
        patch.setattr(teardown, "campaign_settings", self._settings)
        patch.setattr(teardown, "forget_kubernetes", lambda context, deployment: self.did.append("forget"))
        patch.setattr(teardown, "remove_left", self._remove_left)
        patch.setattr(teardown, "bills_on", lambda context: self.bill)
        patch.setattr(teardown, "remains", lambda account, names: self.rows)
        patch.setattr(teardown, "end_instances", lambda context: self.did.append("end instances"))
        patch.setattr(teardown.certify, "knowledge", lambda store, names: "known")
        patch.setattr(teardown.certify, "look_through", self._look_through)

    def _remove_left(self, context: Any, in_network: bool = False) -> tuple[str, ...]:
        self.did.append("clear network" if in_network else "sweep")
        return () if in_network else self.left

    @staticmethod
    def _next(several: list[Any]) -> Any:
        return several.pop(0) if len(several) > 1 else several[0]

    def _settings(self, context: Any, digest: str) -> Any:
        self.digest = digest
        return SimpleNamespace(to_config=lambda: {})

    def _look_through(self, account: Any, names: Any, principal: str, owner: str, kept: Any, known: Any) -> Any:
        assert (principal, owner, known) == ("arn:me", "123456789012", "known")
        self.did.append("look")
        return SimpleNamespace(certain=self._next(self.sights))

    def state(self) -> CampaignState:
        return self.state_now

    def guard(self) -> None:
        self.did.append("guard")
        if self.did.count("guard") > self.lost_after:
            raise LeaseLost("another driver", seen="it", cure="wait")

    def turns(self, seconds: float, interval: float = 0.5) -> Iterator[None]:
        self.paused.append(seconds)
        until = self.now + seconds
        while self.now < until:
            yield
            self.now += interval
        yield

    # The engine

    def stack(self, name: str, config: Any) -> str:
        assert name == self.names.stack
        return name

    def amend(self, stack: str, change: Any) -> None:
        change({})

    def resources(self, stack: str) -> int:
        return int(self._next(self.held))

    def destroy(self, stack: str) -> None:
        self.did.append("destroy")
        if (error := self._next(self.tries)) is not None:
            raise error

    # IAM

    def detach_role_policy(self, *, RoleName: str, PolicyArn: str) -> None:
        assert PolicyArn == "arn:aws:iam::123456789012:policy/bivouac_freeze_us-east-1"
        if RoleName not in self.frozen:
            raise self.exceptions.NoSuchEntityException({"Error": {"Code": "NoSuchEntity"}}, "DetachRolePolicy")
        self.did.append(f"thaw {RoleName}")

    def run(self, abandon: bool = False) -> TeardownOutput:
        more = {"abandon": True} if abandon else {}
        return teardown.run(self, **more)  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakedTeardown:
    return FakedTeardown(monkeypatch, tmp_path)
