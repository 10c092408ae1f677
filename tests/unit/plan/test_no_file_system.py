"""The plan of a campaign without a shared file system, by hand, and what it is refused for."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from infra.aws.quota_room import quota_questions
from infra.plan.checks import storage as rules
from infra.plan.checks.finding import Case
from infra.plan.estimates import cost, storage
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.spec.campaign import Spec, Workload
from tests.example import example_spec
from tests.unit.plan.checks.refused import FRESH

NONE: dict[str, Any] = {"storage": {"shared": "none"}}


@pytest.fixture(scope="module")
def spec() -> Spec:
    return example_spec(**NONE)


def test_no_line_of_the_cost_is_of_fsx_and_the_checkpoints_bill_by_size(spec: Spec) -> None:
    lines = {line.name: line for line in make_plan(spec, survey(spec)).cost}
    there = {line.name for line in make_plan(example_spec(), survey(spec)).cost}
    assert there - set(lines) == {"FSx for Lustre", "S3 interval copies"}
    assert set(lines) - there == {"S3 checkpoints"}
    keep = (spec.checkpoint.keep_shared if spec.checkpoint is not None else 3) + 1
    assert f"{keep} checkpoints, " in lines["S3 checkpoints"].formula
    assert cost.lustre_usd_per_gb_month(spec, survey(spec).prices) is None


def test_each_node_sends_its_part_to_s3_at_ten_gigabits_and_reads_it_back(spec: Spec) -> None:
    by_hand = storage.checkpoint_bytes(spec) * 2 * 8 / (10e9 * spec.nodes.count)
    assert storage.shared_write_seconds(spec) == pytest.approx(by_hand)
    (tier,) = [tier for tier in make_plan(spec, survey(spec)).tiers if tier.name == "shared"]
    assert tier.capacity_bytes is None and tier.where == "S3, from every node"


def test_nothing_waits_for_a_file_system(spec: Spec) -> None:
    told = " ".join(one.formula for one in make_plan(spec, survey(spec)).clock)
    assert "file system" not in told and "control plane 10" in told


def test_no_quota_of_fsx_is_asked_for(spec: Spec) -> None:
    asked = [len(list(quota_questions(None, one))) for one in (spec, example_spec())]  # type: ignore[arg-type]
    assert asked[1] - asked[0] == 2


JOB = Workload.model_validate({"script": "/job.py", "estimates": {"steps": 1, "step_seconds": 1}})


def test_a_job_of_ones_own_is_refused_with_reason_and_cure(spec: Spec) -> None:
    job = spec.model_copy(update={"workload": JOB, "training": None, "data": None, "checkpoint": None})
    (draft,) = rules.no_file_system(Case(job, survey(spec), FRESH))
    assert draft.place == "storage.shared" and draft.level.value == "error"
    assert "folder that all nodes share" in draft.message and "1200 GiB" in draft.cure


def test_the_bill_is_smaller_by_what_the_file_system_costs() -> None:
    with_it, without = (make_plan(one, survey(one)) for one in (example_spec(), example_spec(**NONE)))
    lustre = next(line.usd for line in with_it.cost if line.name == "FSx for Lustre")
    saved = cost.total_usd(with_it.cost) - cost.total_usd(without.cost)
    assert lustre > 0 and abs(saved - lustre) < lustre / 2 + Decimal("0.5")
