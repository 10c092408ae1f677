"""Nodes that failed in an earlier campaign: refused by preflight, within bounds, and never for ever."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign.repairs.known_faults import FaultMemory, remember_image, remember_node
from infra.campaign.verdicts import GangCheck, fault_text, judge
from infra.cluster.fitness import NodeFacts
from infra.record.events import Stage
from infra.record.faults import Fault, read_faults
from infra.record.payloads.outputs import BakeOutput
from tests.part import part
from tests.worlds.s3 import FakeS3, Time, refusal
from trainer.contract import HealthReport, Probe

GANG = [part(NodeFacts, name=f"n{number}", instance=f"i-{number}", network=("top", "leaf")) for number in range(4)]
AMI = "ami-1"


class Account:
    """A campaign's context, as far as the memory uses it."""

    def __init__(self, *faults: dict[str, Any]) -> None:
        time = Time()
        time.go((datetime.now(UTC) - time.wall()).total_seconds())
        self.s3 = FakeS3(time)
        self.notes: list[str] = []
        baked = BakeOutput.model_validate({"node_image": {"ami": AMI}})
        self.context: Any = SimpleNamespace(
            store=SimpleNamespace(s3=self.s3, bucket="state", root="", put=self.put),
            progress=SimpleNamespace(note=self.notes.append),
            spec=SimpleNamespace(campaign="new", profile="p5"),
            outputs={Stage.BAKE: baked},
        )
        for number, fields in enumerate(faults):
            base = {"at": datetime.now(UTC) - timedelta(days=2), "campaign": "old", "reason": "row remap failed"}
            row = Fault.model_validate(base | fields)
            self.put(f"foundation/faults/old/{number}.json", row.model_dump_json().encode())

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket="state", Key=key, Body=body)


def check(hardware: Sequence[str] = (), bad: str = "") -> GangCheck:
    rows = {
        facts.name: HealthReport(
            node=facts.name,
            hardware=(hardware[number],) if number < len(hardware) else (),
            probes=(Probe(name="ecc", ok=facts.name != bad, seen=facts.name, wanted="none"),),
        )
        for number, facts in enumerate(GANG)
    }
    return judge(rows, GANG)


def test_a_host_that_comes_back_under_another_instance_is_refused_with_the_words() -> None:
    account = Account({"instance": "i-old", "hardware": ["GPU-7"]})
    (verdict,) = FaultMemory(account.context).judge(check(["GPU-1", "GPU-7"]), is_last=False).unfit
    assert verdict["node"] == "n1"
    text = fault_text(verdict, "p5")
    assert "known_fault: i-old failed on" in text and "in old: row remap failed" in text


def test_an_instance_that_comes_back_is_refused_and_a_sound_gang_is_left_alone() -> None:
    account = Account({"instance": "i-2"})
    memory = FaultMemory(account.context)
    assert [row["node"] for row in memory.judge(check(), is_last=False).unfit] == ["n2"]
    quiet = Account({"instance": "i-9", "hardware": ["GPU-9"]})
    before = check(["GPU-1"])
    assert FaultMemory(quiet.context).judge(before, is_last=False) == before and quiet.notes == []


def test_the_last_round_refuses_none_and_says_so() -> None:
    account = Account({"instance": "i-2"})
    after = FaultMemory(account.context).judge(check(), is_last=True)
    assert not after.unfit and "n2 is taken all the same" in account.notes[-1]


def test_hardware_that_comes_again_is_refused_only_once() -> None:
    account = Account({"instance": "i-old", "hardware": ["GPU-1"]})
    memory = FaultMemory(account.context)
    assert memory.judge(check(["GPU-1"]), is_last=False).unfit
    assert not memory.judge(check(["GPU-0", "GPU-1"]), is_last=False).unfit
    assert "n1 is taken all the same" in account.notes[-1]


def test_at_most_half_of_the_gang_is_refused_at_once() -> None:
    account = Account(*({"instance": f"i-{number}"} for number in range(4)))
    assert len(FaultMemory(account.context).judge(check(), is_last=False).unfit) == 2


def test_a_memory_that_cannot_be_read_refuses_nothing_and_is_told() -> None:
    account = Account({"instance": "i-2"})
    account.s3.away = refusal("AccessDenied", 403, "ListObjectsV2")
    assert not FaultMemory(account.context).judge(check(), is_last=False).unfit
    assert "cannot be read, so it refuses no node" in account.notes[0]


def test_an_unfit_node_is_noted_with_its_hardware_and_one_refused_for_an_old_fault_is_not_noted_anew() -> None:
    account = Account({"instance": "i-2"})
    after = FaultMemory(account.context).judge(check(["GPU-0"], bad="n0"), is_last=False)
    assert {row["node"] for row in after.unfit} == {"n0", "n2"}
    for verdict in after.unfit:
        remember_node(account.context, verdict, GANG)
    new = [row for row in read_faults(account.s3, "state", datetime.now(UTC)).faults if row.campaign == "new"]
    (noted,) = new
    assert (noted.instance, noted.hardware, noted.network) == ("i-0", ("GPU-0",), ("top", "leaf"))
    assert "ecc: n0" in noted.reason


def test_an_image_on_which_every_node_failed_is_told_by_the_next_campaign_and_baked_on() -> None:
    account = Account()
    remember_image(account.context, ["version nccl: 2.27.7, wanted 2.30.4"])
    FaultMemory(account.context)
    assert "known fault of the node image: ami-1 failed on" in account.notes[-1] and "version nccl" in account.notes[-1]


@pytest.mark.parametrize("code", ["AccessDenied", "SlowDown"])
def test_a_memory_that_takes_no_note_stops_nothing(code: str) -> None:
    account = Account()
    account.s3.away = refusal(code, 403)
    remember_node(account.context, check(bad="n0").unfit[0], GANG)
    assert "not noted for later campaigns" in account.notes[-1]
