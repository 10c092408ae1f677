"""Mounts with volumes of their own: what `check` says of each before anything is paid for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from infra.plan.checks import mounts
from infra.plan.checks.finding import Case, Draft
from infra.plan.facts import Admission, Facts, GivenFileSystem
from infra.plan.survey import survey
from tests.example import example_spec
from tests.unit.plan.checks.existing_network import EXISTING_VPC, existing

FSX = "fs-0123456789abcdef0"
VPC = EXISTING_VPC["network.vpc_id"]
NETWORK = {"vpc_id": VPC, "subnet_ids": EXISTING_VPC["network.subnet_ids"]}
OPEN = (Admission(first=988, last=988, source="10.9.0.0/16"), Admission(first=1018, last=1023, source="10.9.0.0/16"))
SOUND = GivenFileSystem(id=FSX, kind="LUSTRE", lifecycle="AVAILABLE", vpc_id=VPC, mount_name="abcdefgh",
                        admits=OPEN)  # fmt: skip


def case(mount: dict[str, Any], bend: Callable[[Facts], Facts] | None = None, **changes: Any) -> Case:
    job = {
        "script": "/train.py", "checkpoints": {"format": "marker"}, "mounts": {"team": mount},
        "estimates": {"steps": 9, "step_seconds": 1, "checkpoint_gib": 1},
    }  # fmt: skip
    spec = example_spec(training=None, data=None, workload=job, **changes)
    facts = survey(spec)
    return Case(spec, bend(facts) if bend is not None else facts, date(2026, 8, 1))


def given(*answers: GivenFileSystem) -> list[Draft]:
    """What is found where AWS describes these file systems."""
    network = existing({"gpu": {"cidr": "10.9.0.0/24"}})
    known = case({"fsx": FSX}, lambda facts: network(facts).model_copy(update={"file_systems": answers}),
                 network=NETWORK)  # fmt: skip
    return list(mounts.given_file_system(known))


def bent(**changes: Any) -> list[Draft]:
    return given(SOUND.model_copy(update=changes))


def test_a_file_system_that_admits_the_nodes_subnet_is_no_finding() -> None:
    assert bent() == []
    halves = tuple(Admission(first=0, last=65535, source=f"10.9.0.{start}/25") for start in (0, 128))
    assert bent(admits=halves) == [], "two ranges cover the subnet together"


@pytest.mark.parametrize(
    ("changes", "seen", "cure"),
    [
        ({"kind": "ONTAP"}, "ONTAP", "Lustre"),
        ({"lifecycle": "CREATING"}, "CREATING", "AVAILABLE"),
        ({"vpc_id": "vpc-1"}, "vpc-1", "network.vpc_id: vpc-1"),
        ({"admits": ()}, "988-988, 1018-1023 from 10.9.0.0/24", "security group"),
        ({"admits": OPEN[:1]}, "ports 1018-1023", "security group"),
        ({"admits": (OPEN[1], Admission(first=988, last=988, source="10.9.0.0/25"))}, "ports 988-988", "10.9.0.0/24"),
    ],
    ids=str,
)
def test_what_keeps_nodes_from_mounting_it_is_an_error_with_its_cure(
    changes: dict[str, Any], seen: str, cure: str
) -> None:
    (found,) = bent(**changes)
    assert (
        found.level == "error" and seen in found.seen and cure in found.cure and found.place == "workload.mounts.team"
    )


def test_a_prefix_list_that_was_not_looked_into_is_no_proof_that_the_way_is_closed() -> None:
    (found,) = bent(admits=(Admission(first=0, last=65535, source="pl-0123"),))
    assert found.level == "warning"


def test_an_own_file_system_needs_its_own_network_and_unasked_facts_are_no_finding() -> None:
    (found,) = mounts.given_file_system(case({"fsx": FSX}))
    assert found.level == "error" and "network.vpc_id" in found.cure


def test_one_that_the_account_does_not_have_is_an_error() -> None:
    (found,) = given()
    assert found.level == "error" and "describe-file-systems" in found.cure and found.seen == FSX


def staged(size_gib: float, **changes: Any) -> list[Draft]:
    mount = {"s3": "s3://bucket/x", "stage": "nvme", "size_gib": size_gib}
    return list(mounts.staged_mounts(case(mount, **changes)))


def test_copies_fit_the_disks_and_the_time_or_are_refused() -> None:
    """p5.48xlarge: 8 disks of 3,840 GB. Copied at 1.25 GB/s, the rate of one S3 client."""
    assert staged(400) == []
    slow, long = staged(2000), staged(2000, recovery={"startup_timeout": "90m"})
    assert [one.level for one in slow] == ["error"] and "startup_timeout" in slow[0].cure and long == []
    too_large = staged(30_000, recovery={"startup_timeout": "20h"})
    assert len(too_large) == 1 and "do not fit" in too_large[0].message


def test_a_node_without_disks_is_no_place_for_a_copy() -> None:
    def without_disks(facts: Facts) -> Facts:
        assert facts.instance is not None
        return facts.model_copy(update={"instance": facts.instance.model_copy(update={"nvme_count": 0})})

    mount = {"s3": "s3://bucket/x", "stage": "nvme", "size_gib": 1}
    (found,) = mounts.staged_mounts(case(mount, without_disks))
    assert found.level == "error" and "do not fit" in found.message and "more NVMe" in found.cure
