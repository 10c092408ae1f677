"""Copies of mounts on the nodes' disks: what `check` says of each before anything is paid for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from infra.plan.checks import mounts
from infra.plan.checks.finding import Case, Draft
from infra.plan.facts import Facts
from infra.plan.survey import survey
from tests.example import example_spec


def case(mount: dict[str, Any], bend: Callable[[Facts], Facts] | None = None, **changes: Any) -> Case:
    job = {
        "script": "/train.py", "checkpoints": {"format": "marker"}, "mounts": {"team": mount},
        "estimates": {"steps": 9, "step_seconds": 1, "checkpoint_gib": 1},
    }  # fmt: skip
    spec = example_spec(training=None, data=None, workload=job, **changes)
    facts = survey(spec)
    return Case(spec, bend(facts) if bend is not None else facts, date(2026, 8, 1))


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
