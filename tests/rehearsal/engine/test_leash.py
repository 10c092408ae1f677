"""A driver killed or stopped in the middle of `pulumi up`: its engine ends, the next driver finishes, once each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from infra.campaign import provision
from infra.engine import leash
from infra.engine import locks as rules
from infra.engine.engine import Engine
from infra.errors import LeaseLost, PermanentError
from infra.record.events import Stage
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.rehearsal.aws.world import Call
from infra.spec.names import PROJECT
from tests.rehearsal.aws_account import until
from tests.root import ROOT
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.nightly

LEASE_S = 10.0
"""Long enough for a busy machine to renew it three times."""
READS = ("Get", "List", "Describe", "Head", "AssumeRole")
SLOW_S = 5
OWN = f"leashed-{os.getpid()}"
"""Engines are told by their campaign, all over this machine."""


@dataclass
class Struck:
    """What was seen of drivers that were struck one after the other, each in the middle of another creation."""

    held: CampaignSite
    outlived: list[str] = field(default_factory=list)
    """Drivers whose engine was still there when its time was over."""
    ends: dict[str, int] = field(default_factory=dict)
    """Driver -> exit code."""
    locked: list[str] = field(default_factory=list)
    """Locks after the one that was interrupted politely."""
    pending: Any = None
    woken: list[str] = field(default_factory=list)
    """What the stopped one asked for once it woke up, after another one had finished."""

    def words(self, driver: str) -> str:
        return (self.held.folder / f"{driver}.log").read_text()


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("camp"), campaign=OWN) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_LEASE_SECONDS", str(LEASE_S))
        patch.setenv("BIVOUAC_SITE", "in-process")
        # No image can be baked on the machines here: the record says that it was.
        outputs = {"image": "base@sha256:0", "code": "c", "manifest": "none", "baked": False}
        with made.opened() as context:
            context.store.append(StageStarted(stage=Stage.BAKE))
            context.store.append(StageFinished(stage=Stage.BAKE, seconds=0.0, outputs=outputs))
        yield made


@pytest.fixture(scope="module")
def struck(held: CampaignSite) -> Iterator[Struck]:
    """One campaign carries a driver that is killed, one that is stopped and one that is interrupted."""
    drivers, seen = dict[str, subprocess.Popen[str]](), Struck(held)
    try:
        for name, action in (("killed", "CreateCluster"), ("stopped", "CreateNodegroup"), ("asked", "CreateAddon")):
            driver = drivers[name] = drive(held, name, action)
            assert engines(held), f"the engine of the {name} one runs"
            driver.send_signal(SIGNALS[name])
            if name != "stopped":
                seen.ends[name] = driver.wait(60)
            if name == "asked":
                seen.locked = locks(held)
            seen.outlived += ended(held, name, LEASE_S if name == "stopped" else 0.0)
        with held.opened() as context:
            provision.run(context)
            stack = Engine(context, held.folder / "look").stack(held.names.stack, {})
            seen.pending = (stack.export_stack().deployment or {}).get("pending_operations")
        listener = partial(_heard, seen.woken)
        held.world.faults.append(listener)
        drivers["stopped"].send_signal(signal.SIGCONT)
        seen.ends["stopped"] = drivers["stopped"].wait(60)
        held.world.faults.remove(listener)
        yield seen
    finally:
        for driver in drivers.values():
            driver.kill()
            driver.wait()


SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "asked": signal.SIGINT}


def _heard(calls: list[str], call: Call) -> None:
    calls.append(f"{call.service}:{call.action} {call.path}")


def drive(held: CampaignSite, name: str, action: str) -> subprocess.Popen[str]:
    """`bivouac run` in a process of its own, in the middle of such a creation."""
    path, log = held.folder / "campaign.json", held.folder / f"{name}.log"
    path.write_text(held.spec.model_dump_json())
    (rule,) = held.ask("faults", add=[{"service": "eks", "action": action, "effect": "delay", "delay_s": SLOW_S}])[
        "added"
    ]
    with log.open("w") as words:
        driver = subprocess.Popen(
            [sys.executable, "-m", "infra.cli.main", "run", str(path)], cwd=ROOT, env=os.environ, stdout=words,
            stderr=words, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip

    def creating() -> bool:
        assert driver.poll() is None, log.read_text()
        return any(one["id"] == rule and one["hits"] for one in held.ask("faults")["rules"])

    until(creating)
    return driver


def ended(held: CampaignSite, name: str, lease_s: float) -> list[str]:
    """The driver's name where its engine is still there after lease and bound, with what a busy machine takes."""
    try:
        until(lambda: not engines(held), within_s=lease_s + leash.BOUND_S + 10)
    except AssertionError:
        return [name]
    return []


def engines(held: CampaignSite) -> list[int]:
    return [pid for pid, mark in leash.marked_processes().items() if mark.startswith(f"{held.spec.campaign}/")]


def locks(held: CampaignSite) -> list[str]:
    bucket = f"bivouac-state-{held.spec.account}-{held.spec.region}"
    answer = held.client("s3").list_objects_v2(Bucket=bucket, Prefix=f".pulumi/locks/organization/{PROJECT}/")
    return [item["Key"] for item in answer.get("Contents", ())]


def test_no_engine_outlives_its_driver(struck: Struck) -> None:
    assert struck.outlived == []
    assert struck.ends["killed"] == -signal.SIGKILL


def test_the_next_driver_finishes_with_one_of_each_and_nothing_pending(struck: Struck) -> None:
    held = struck.held
    assert not locks(held) and not struck.pending
    assert held.client("eks").list_clusters()["clusters"] == [held.names.cluster]
    asked = Counter(row["action"] for row in held.ask("changes")["changes"])
    assert asked["CreateCluster"] == 1, "the one that was coming is taken, not destroyed and made again"
    assert asked["CreateNodegroup"] == 2 and asked["CreateFileSystem"] == 1, asked
    by_tag = [{"Name": "tag:bivouac:campaign", "Values": [held.spec.campaign]}]
    assert len(held.client("ec2").describe_vpcs(Filters=by_tag)["Vpcs"]) == 1
    assert len(held.client("ec2").describe_nat_gateways(Filters=by_tag)["NatGateways"]) == 1


def test_a_stopped_driver_wakes_to_touch_nothing(struck: Struck) -> None:
    assert [call for call in struck.woken if not call.split(":")[1].startswith(READS)] == []
    assert struck.ends["stopped"] == LeaseLost.exit_code, struck.words("stopped")
    assert f"lease of {OWN} is lost" in struck.words("stopped")


def test_ctrl_c_lets_the_engine_finish_and_leaves_no_lock(struck: Struck) -> None:
    words = struck.words("asked")
    assert struck.ends["asked"] == 130, words
    assert "letting pulumi finish" in words and "Traceback" not in words
    assert struck.locked == []


def test_a_lock_that_a_person_took_is_waited_for(held: CampaignSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_HAND_WAIT_S", 1.0 - leash.BOUND_S)
    with held.opened() as context:
        engine = Engine(context, held.folder / "look")
        stack = engine.stack(held.names.stack, {f"{PROJECT}:kind": "campaign"})
        lock: dict[str, Any] = {"pid": os.getpid(), "username": "me", "hostname": os.uname().nodename}
        lock["timestamp"] = "2100-01-01T00:00:00Z"
        key = f".pulumi/locks/organization/{PROJECT}/{held.names.stack}/by-hand.json"
        context.store.put(key, json.dumps(lock).encode())
        with pytest.raises(PermanentError, match="by hand"):
            engine.destroy(stack)
        lock["hostname"] = "elsewhere"
        context.store.put(key, json.dumps(lock).encode())
        with pytest.raises(PermanentError, match="on another machine"):
            engine.destroy(stack)
