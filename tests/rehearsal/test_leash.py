"""A driver killed or stopped in the middle of `pulumi up`: its engine ends, the next driver finishes, once each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_account import until
from campaign_world import ROOT, Camp, camp

from infra.errors import LeaseLost, PermanentError
from infra.events import Kind, Stage
from infra.lifecycle import leash, provision
from infra.lifecycle import locks as rules
from infra.lifecycle.engine import Engine
from infra.names import PROJECT
from infra.rehearsal.aws.world import Call

LEASE_S = 6.0
drivers: list[subprocess.Popen[str]] = []
READS = ("Get", "List", "Describe", "Head", "AssumeRole")


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Camp]:
    """A campaign whose cluster takes its time to be created."""
    monkeypatch.setenv("BIVOUAC_LEASE_SECONDS", str(LEASE_S))
    with camp(tmp_path) as made:
        monkeypatch.setenv("BIVOUAC_SITE", "in-process")
        # No image can be baked on the machines here: the record says that it was.
        outputs = {"image": "base@sha256:0", "code": "c", "manifest": "none", "baked": False}
        with made.opened() as context:
            context.store.append(Kind.STAGE_STARTED, stage=Stage.BAKE)
            context.store.append(Kind.STAGE_FINISHED, stage=Stage.BAKE, seconds=0.0, outputs=outputs)
        made.ask("faults", add=[{"service": "eks", "action": "CreateCluster", "effect": "delay", "delay_s": 5}])
        yield made
        for driver in drivers:
            driver.kill()
            driver.wait()
        drivers.clear()


def drive(held: Camp) -> subprocess.Popen[str]:
    """`bivouac run` in a process of its own, in the middle of creating the cluster."""
    path = held.folder / "campaign.json"
    path.write_text(held.spec.model_dump_json())
    log = (held.folder / "driver.log").open("w")
    driver = subprocess.Popen(
        [sys.executable, "-m", "infra.cli", "run", str(path)], cwd=ROOT, env=os.environ, stdout=log, stderr=log,
        text=True, start_new_session=True,
    )  # fmt: skip

    drivers.append(driver)

    def creating() -> bool:
        assert driver.poll() is None, (held.folder / "driver.log").read_text()
        return bool(held.ask("faults")["rules"][0]["hits"])

    until(creating, 90)
    return driver


def engines(held: Camp) -> list[int]:
    return [pid for pid, mark in leash.marked().items() if mark.startswith(f"{held.spec.campaign}/")]


def locks(held: Camp) -> list[str]:
    bucket = f"bivouac-state-{held.spec.account}-{held.spec.region}"
    found = held.client("s3").list_objects_v2(Bucket=bucket, Prefix=f".pulumi/locks/organization/{PROJECT}/")
    return [item["Key"] for item in found.get("Contents", ())]


def finish(held: Camp) -> None:
    """The next driver provisions; afterwards there is one of each, no lock, nothing pending."""
    with held.opened() as context:
        provision.run(context)
        stack = Engine(context, held.folder / "look").stack(held.names.stack, {})
        assert not (stack.export_stack().deployment or {}).get("pending_operations")
    assert not locks(held)
    assert held.client("eks").list_clusters()["clusters"] == [held.names.cluster]
    asked = [row["action"] for row in held.ask("changes")["changes"]]
    assert asked.count("CreateCluster") == 1, "the one that was coming is taken, not destroyed and made again"
    by_tag = [{"Name": "tag:bivouac:campaign", "Values": [held.spec.campaign]}]
    assert len(held.client("ec2").describe_vpcs(Filters=by_tag)["Vpcs"]) == 1
    assert len(held.client("ec2").describe_nat_gateways(Filters=by_tag)["NatGateways"]) == 1


def test_a_killed_drivers_engine_ends_and_the_next_driver_finishes(held: Camp) -> None:
    driver = drive(held)
    assert engines(held)
    driver.kill()
    driver.wait()
    until(lambda: not engines(held), leash.BOUND_S + 10)
    finish(held)


def test_a_stopped_driver_loses_its_engine_and_wakes_to_touch_nothing(held: Camp) -> None:
    driver = drive(held)
    driver.send_signal(signal.SIGSTOP)
    until(lambda: not engines(held), LEASE_S + leash.BOUND_S + 10)
    finish(held)
    calls: list[str] = []

    def record(call: Call) -> None:
        if not call.action.startswith(READS):
            calls.append(f"{call.service}:{call.action} {call.path}")

    held.world.faults.append(record)
    driver.send_signal(signal.SIGCONT)
    code = driver.wait(60)
    assert calls == []
    assert code == LeaseLost.exit_code, (held.folder / "driver.log").read_text()
    assert "lease of drilled is lost" in (held.folder / "driver.log").read_text()


def test_ctrl_c_lets_the_engine_finish_and_leaves_no_lock(held: Camp) -> None:
    driver = drive(held)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) == 130
    said = (held.folder / "driver.log").read_text()
    assert "letting pulumi finish" in said and "Traceback" not in said
    assert not engines(held) and not locks(held)
    finish(held)


def test_a_lock_that_a_person_took_is_waited_for(held: Camp, monkeypatch: pytest.MonkeyPatch) -> None:
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
