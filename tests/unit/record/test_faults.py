"""The account's memory of faults: what it knows again, for how long, and what it could not read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from infra.record.faults import Fault, note_fault, read_faults
from tests.worlds.s3 import FakeS3, Time


def fault(time: Time, **fields: Any) -> Fault:
    base = {"at": time.wall(), "campaign": "old", "reason": "silent", "node": "n", "instance": "i-1"}
    return Fault.model_validate(base | fields)


def memory(*faults: Fault, time: Time) -> FakeS3:
    s3 = FakeS3(time)
    for row in faults:
        note_fault(lambda key, body: s3.put_object(Bucket="state", Key=key, Body=body) and None, row)
    return s3


def test_a_node_is_known_again_by_its_instance_and_its_hardware_by_any_of_its_gpus() -> None:
    time = Time()
    s3 = memory(fault(time, hardware=("GPU-a", "GPU-b")), time=time)
    known = read_faults(s3, "state", time.wall())
    assert list(s3.objects) == ["foundation/faults/old/i-1.json"]
    by_instance, by_hardware = known.of_node("i-1", ()), known.of_node("i-9", ["GPU-x", "GPU-b"])
    assert by_instance == by_hardware and by_instance is not None
    assert str(by_instance) == "i-1 failed on 2026-11-22 in old: silent"
    assert known.of_node("i-9", ["GPU-x"]) is None and known.of_node("", ()) is None and known.unread == ()


def test_a_fault_counts_for_fourteen_days() -> None:
    time = Time()
    s3 = memory(fault(time), time=time)
    begin = time.wall()
    assert read_faults(s3, "state", begin + timedelta(days=13, hours=23)).faults
    assert not read_faults(s3, "state", begin + timedelta(days=14, seconds=1)).faults
    copied = memory(fault(time, at=begin - timedelta(days=15)), time=time)  # an object that was written anew
    assert not read_faults(copied, "state", begin).faults


def test_what_cannot_be_read_is_named_and_hides_no_other() -> None:
    time = Time()
    s3 = memory(fault(time), fault(time, image="ami-1", instance=None), time=time)
    for number, content in enumerate((b"{", b"[]", b'{"at": "soon"}')):
        s3.put_object(Bucket="state", Key=f"foundation/faults/old/x{number}.json", Body=content)
    known = read_faults(s3, "state", time.wall())
    assert len(known.unread) == 3 and known.of_node("i-1", ()) and known.of_image("ami-1")
    assert known.of_image("ami-2") is None


def test_beyond_two_hundred_the_oldest_are_named_as_unread() -> None:
    time = Time()
    s3 = FakeS3(time)
    for number in range(203):
        row = fault(time, instance=f"i-{number}")
        note_fault(lambda key, body: s3.put_object(Bucket="state", Key=key, Body=body) and None, row)
        time.go(1)
    known = read_faults(s3, "state", time.wall())
    assert {key.rpartition("/")[2] for key in known.unread} == {"i-0.json", "i-1.json", "i-2.json"}
    assert known.faults[0].instance == "i-202"
