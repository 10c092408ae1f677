"""Nodes that failed in an earlier campaign: refused by preflight, within bounds, and never for ever."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign.preflight import order_spares
from infra.campaign.repairs.known_faults import FaultMemory, remember_image, remember_node
from infra.campaign.verdicts import GangCheck, fault_text, judge
from infra.cluster.fitness import NodeFacts
from infra.cluster.nodes import Launched
from infra.record.events import Stage
from infra.record.faults import PastFault, read_faults
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
            store=SimpleNamespace(s3=self.s3, bucket="state", put=self.put),
            progress=SimpleNamespace(note=self.notes.append),
            spec=SimpleNamespace(campaign="new", profile="p5", borrows_nodes=False),
            outputs={Stage.BAKE: baked},
        )
        for number, fields in enumerate(faults):
            base = {"at": datetime.now(UTC) - timedelta(days=2), "campaign": "old", "reason": "row remap failed"}
            row = PastFault.model_validate(base | fields)
            self.put(f"foundation/faults/old/{number}.json", row.model_dump_json().encode())

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket="state", Key=key, Body=body)


def enough(count: int) -> int:
    """EC2 has as many other instances as are asked for."""
    return count


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
    (verdict,) = FaultMemory(account.context).judge(check(["GPU-1", "GPU-7"]), is_last=False, order_spares=enough).unfit
    assert verdict["node"] == "n1"
    text = fault_text(verdict, "p5")
    assert "known_fault: i-old failed on" in text and "in old (avoided until" in text and "row remap failed" in text


def test_an_instance_that_comes_back_is_refused_and_a_sound_gang_is_left_alone() -> None:
    account = Account({"instance": "i-2"})
    memory = FaultMemory(account.context)
    assert [row["node"] for row in memory.judge(check(), is_last=False, order_spares=enough).unfit] == ["n2"]
    quiet = Account({"instance": "i-9", "hardware": ["GPU-9"]})
    before = check(["GPU-1"])
    assert FaultMemory(quiet.context).judge(before, is_last=False, order_spares=enough) == before and quiet.notes == []


def test_the_last_round_refuses_none_and_says_so() -> None:
    account = Account({"instance": "i-2"})
    after = FaultMemory(account.context).judge(check(), is_last=True, order_spares=enough)
    assert not after.unfit and "n2 is taken all the same" in account.notes[-1]


def test_hardware_that_comes_again_is_refused_only_once() -> None:
    account = Account({"instance": "i-old", "hardware": ["GPU-1"]})
    memory = FaultMemory(account.context)
    assert memory.judge(check(["GPU-1"]), is_last=False, order_spares=enough).unfit
    assert not memory.judge(check(["GPU-0", "GPU-1"]), is_last=False, order_spares=enough).unfit
    assert "n1 is taken all the same" in account.notes[-1]


def test_at_most_half_of_the_gang_is_refused_at_once() -> None:
    account = Account(*({"instance": f"i-{number}"} for number in range(4)))
    assert len(FaultMemory(account.context).judge(check(), is_last=False, order_spares=enough).unfit) == 2


def test_a_memory_that_cannot_be_read_refuses_nothing_and_is_told() -> None:
    account = Account({"instance": "i-2"})
    account.s3.away = refusal("AccessDenied", 403, "ListObjectsV2")
    assert not FaultMemory(account.context).judge(check(), is_last=False, order_spares=enough).unfit
    assert "cannot be read, so it refuses no node" in account.notes[0]


def test_an_unfit_node_is_noted_with_its_hardware_and_an_old_fault_is_not_noted_anew() -> None:
    account = Account({"instance": "i-2"})
    after = FaultMemory(account.context).judge(check(["GPU-0"], bad="n0"), is_last=False, order_spares=enough)
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


@pytest.mark.parametrize("has", [0, 1])
def test_a_node_is_refused_only_where_ec2_has_started_another(has: int) -> None:
    account, orders = Account({"instance": "i-1"}, {"instance": "i-2"}), list[int]()

    def order(count: int) -> int:
        orders.append(count)
        return has

    memory = FaultMemory(account.context)
    nodes = [row["node"] for row in memory.judge(check(), False, order).unfit]
    assert orders == [2] and len(nodes) == has
    assert sum("is taken all the same" in note for note in account.notes) == 2 - has
    assert not memory.judge(check(), False, order).unfit and orders == [2], "it asks once for a node"


def nobody_asks(count: int) -> int:
    raise AssertionError(f"{count} instances are asked for")


def test_no_instance_is_ordered_where_no_node_is_to_be_refused() -> None:
    account = Account({"instance": "i-2"})
    memory = FaultMemory(account.context)
    assert not memory.judge(check(), True, nobody_asks).unfit
    assert not FaultMemory(Account().context).judge(check(), False, nobody_asks).unfit


def noted(account: Account) -> dict[str, str]:
    return {str(row.instance): row.reason for row in read_faults(account.s3, "state", datetime.now(UTC)).faults}


@pytest.mark.parametrize("name", ["fabric", "all_reduce", "bus_bandwidth_gb_s", "shared_throughput", "start", "answer"])
def test_what_nodes_share_is_no_single_node_s_fault(name: str) -> None:
    account = Account()
    verdict = {"node": "n0", "instance": "i-0", "hardware": [], "probes": [row(name)]}
    remember_node(account.context, verdict, GANG)
    assert noted(account) == {}
    remember_node(account.context, {**verdict, "probes": [row(name), row("ecc")]}, GANG)
    assert list(noted(account)) == ["i-0"] and name not in noted(account)["i-0"]


def test_what_all_nodes_showed_is_no_single_node_s_fault() -> None:
    account = Account()
    probe = Probe(name="clock", ok=False, seen="late", wanted="in time")
    verdict = {"node": "n0", "instance": "i-0", "hardware": [], "probes": [probe.model_dump(mode="json")]}
    remember_node(account.context, verdict, GANG, (probe,))
    assert noted(account) == {}


def row(name: str) -> dict[str, Any]:
    return Probe(name=name, ok=False, seen="bad", wanted="good").model_dump(mode="json")


class Group:
    """A node group of four, as EC2 answers: so many more instances, and then its refusal."""

    def __init__(self, has: int, refusal_text: str = "InsufficientInstanceCapacity") -> None:
        self.has, self.sizes, self.refusal_text = has, list[int](), refusal_text
        self.error: BaseException | None = None

    def set_desired(self, count: int) -> bool:
        self.sizes.append(count)
        return True

    def launched(self) -> tuple[Launched, ...]:
        if self.error is not None and self.sizes:
            raise self.error
        count = min(max(self.sizes, default=4), 4 + self.has)
        return tuple(Launched(f"i-{number}", "pending", datetime.now(UTC)) for number in range(count))

    def refusals(self, start: datetime) -> tuple[str, ...]:
        return (self.refusal_text,) if self.refusal_text else ()


def order_of(group: Group, count: int, turns: int = 3) -> int:
    context: Any = SimpleNamespace(
        spec=SimpleNamespace(nodes=SimpleNamespace(count=4)),
        progress=SimpleNamespace(note=lambda text: None),
        turns=lambda seconds: iter(range(turns)),
    )
    return order_spares(context, group, count)  # type: ignore[arg-type]


@pytest.mark.parametrize(("has", "sizes"), [(2, [6, 6]), (1, [6, 5]), (0, [6, 4])])
def test_the_group_keeps_as_many_instances_above_its_number_as_ec2_starts(has: int, sizes: list[int]) -> None:
    group = Group(has)
    assert order_of(group, 2) == has and group.sizes == sizes


def test_a_group_that_neither_starts_nor_refuses_is_not_waited_for_for_ever() -> None:
    group = Group(0, refusal_text="")
    assert order_of(group, 1) == 0 and group.sizes == [5, 4]


def test_what_cannot_be_seen_is_no_spare_and_the_group_is_set_back() -> None:
    group = Group(1)
    group.error = refusal("RequestLimitExceeded", 503)
    assert order_of(group, 1) == 0 and group.sizes == [5, 4]


def test_a_signal_leaves_no_instance_above_the_gangs_number_that_nobody_has_seen() -> None:
    """It would bill until somebody comes back, and the record would not count it."""
    group = Group(2)
    group.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        order_of(group, 2)
    assert group.sizes == [6, 4]
