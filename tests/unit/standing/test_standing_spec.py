"""A spec for an existing cluster: its shape, its rules and its plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from infra.plan.checks import RULES, STANDING_RULES, Finding, Level, rules_of, standing
from infra.plan.plan import make_plan
from infra.plan.survey import ENVIRONMENTS, survey
from infra.spec.campaign import Spec, SpecError
from infra.spec.standing import PLACEHOLDERS
from tests.root import ROOT
from tests.unit.standing.conftest import SPEC, Standing

Found = Callable[..., dict[str, Finding]]
WORKLOAD = {
    "training": None, "data": None,
    "workload": {"command": ["./train"], "launcher": "none",
                 "estimates": {"steps": 100, "step_seconds": 1, "checkpoint_gib": 1}},
}  # fmt: skip

GIVEN: dict[str, Any] = {
    "account": "123456789012",
    "region": "us-east-1",
    "zone": "us-east-1a",
    "second_zone": "us-east-1b",
    "kubernetes": "1.35",
    "access": [{"principal": "arn:aws:iam::123456789012:user/ada", "role": "operator"}],
    "nodes.capacity": "spot",
    "nodes.reservation_id": "cr-0123456789abcdef0",
    "nodes.block_end": "2026-12-08T11:30:00Z",
    "nodes.block_fee_usd": "100",
    "nodes.placement_group": False,
    "nodes.system_instance_type": "m7i.xlarge",
    "nodes.system_count": 2,
    "money.alarm_email": "ada@example.org",
    "money.alarm_topic_arn": "arn:aws:sns:us-east-1:123456789012:pager",
    "money.freeze_roles": ["ci"],
    "notify.topic": "arn:aws:sns:us-east-1:123456789012:bivouac_pager",
    "notify.webhook": {"parameter": "/bivouac_webhook/team"},
    "notify.routes": {"team": {"parameter": "/bivouac_webhook/team"}},
    "notify.email": ["ada@example.org"],
    "network": {"cidr": "10.9.0.0/16"},
    "encryption": {"customer_key": True},
    "addons": {"kueue": True},
    "image.nodes": "eks",
    "image.builders": {"subnet_id": "subnet-0123456789abcdef0", "security_group_id": "sg-0123456789abcdef0"},
    "preflight.pilot": True,
}


def test_the_spec_has_25_lines_at_most_and_passes(found: Found) -> None:
    assert len(SPEC.read_text().splitlines()) <= 25
    assert found() == {}


def test_the_page_shows_this_spec() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    assert shown == SPEC.read_text()


@pytest.mark.parametrize("field", GIVEN)
def test_a_field_of_aws_is_refused_with_value_and_cure(field: str, found: Found) -> None:
    finding = found({field: GIVEN[field]})[f"field-of-aws {field}"]
    assert finding.level is Level.ERROR and "remove it" in finding.cure
    assert finding.seen == ("a section" if isinstance(GIVEN[field], dict) else finding.seen) != ""


def test_every_field_of_aws_has_been_refused() -> None:
    assert set(GIVEN) == set(standing.AWS_ONLY)


def test_a_file_system_of_aws_is_refused(found: Found) -> None:
    assert "field-of-aws storage" in found({"storage": {"shared": {"capacity_gib": 2400}}})
    assert "field-of-aws storage" in found({"storage": {"local": {"layout": "RAID10"}}})


@pytest.mark.parametrize(
    ("changes", "finding", "cure"),
    [
        ({"image.base": "bivouac/base:host"}, "image-digest image.base", "@sha256"),
        ({"image.base": f"ml/trainer@sha256:{'0' * 64}"}, "image-digest image.base", "registry/"),
        ({"image.steward_base": "registry.example.org/ml/steward:1"}, "image-digest image.steward_base", "@sha256"),
        ({"cluster.nodes": {"labels": {"gpu": "h100"}, "devices": {"nvidia.com/gpu": 4}}},
         "device-count cluster.nodes.devices", "nvidia.com/gpu: 8"),
        ({"cluster.nodes": {"labels": {"gpu": "h100"}, "devices": {"rdma/hca": 8}}},
         "device-count cluster.nodes.devices", "nvidia.com/gpu: 8"),
        ({"cluster.namespace": "default"}, "own-namespace cluster.namespace", "bivouac grant"),
        ({"nodes.usd_per_hour": None}, "own-price nodes.usd_per_hour", "by the hour"),
        ({"data.prepare": {"where": "cluster"}, "data.source": "s3://bucket/text"}, "job-inputs data.prepare",
         "driver's machine"),
        ({"cluster.s3.endpoint": "http://minio:9000"}, "encrypted-s3 cluster.s3.endpoint", "https://"),
        ({"nodes.instance_type": "p9.huge"}, "known-instance-type nodes.instance_type", "catalogue"),
    ],
)  # fmt: skip
def test_a_rule_refuses_with_its_cure(changes: dict[str, Any], finding: str, cure: str, found: Found) -> None:
    assert cure in found(changes)[finding].cure


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mounts", {"corpus": "s3://bucket/tokens"}),
        ("init_from", "s3://bucket/weights"),
        ("pull_secret", {"secret": "bivouac_pull"}),
    ],
)
def test_what_only_aws_hands_to_a_job_is_refused(field: str, value: Any, found: Found) -> None:
    image = f"registry.example.org/team/job@sha256:{'1' * 64}"
    job: Any = WORKLOAD["workload"]
    workload = {**job, "image": image, field: value}
    assert f"job-inputs workload.{field}" in found({**WORKLOAD, "workload": workload})


@pytest.mark.parametrize(
    ("source", "level"),
    [
        ({"secret": "hugging-face", "key": "token"}, "info"),
        ({"secret": "bivouac_job/token"}, "error"),
        ({"parameter": "/team/token"}, "error"),
    ],
)
def test_a_jobs_secret_is_one_of_the_namespace_which_nobody_has_looked_at(
    source: dict[str, str], level: str, found: Found
) -> None:
    job: Any = WORKLOAD["workload"]
    image = f"registry.example.org/team/job@sha256:{'1' * 64}"
    findings = found({**WORKLOAD, "workload": {**job, "image": image, "secrets": {"HF_TOKEN": source}}})
    told = findings["job-inputs workload.secrets"]
    assert told.level.value == "info" and "kubelets" in told.message
    assert ("job-inputs workload.secrets.HF_TOKEN" in findings) == (level == "error")


def test_every_rule_of_its_own_is_in_force() -> None:
    assert set(rules_of("case", standing)) <= set(STANDING_RULES)
    assert not set(rules_of("case", standing)) & set(RULES)


def test_each_target_has_what_it_offers() -> None:
    assert set(ENVIRONMENTS) == set(Spec.model_json_schema()["properties"]["target"]["enum"])


def test_the_section_belongs_to_its_target(standing: Standing) -> None:
    with pytest.raises(SpecError, match="needs section `cluster`"):
        standing({"cluster": None})
    on_aws = {"target": "aws", "account": "123456789012", "region": "us-east-1", "zone": "us-east-1a"}
    with pytest.raises(SpecError, match="section `cluster` has no meaning with target aws"):
        standing(on_aws)
    with pytest.raises(SpecError, match="section `rehearsal` has no meaning with target kubernetes"):
        standing({"rehearsal": {}})


def test_account_region_and_zone_are_still_required_elsewhere(standing: Standing) -> None:
    with pytest.raises(SpecError) as refusal:
        standing({"target": "aws", "cluster": None})
    assert {problem.field for problem in refusal.value.problems} == set(PLACEHOLDERS)


@pytest.mark.parametrize("shared", [{}, {"claim": "a", "storage_class": "b"}])
def test_the_shared_tier_is_a_claim_or_a_class(shared: dict[str, str], standing: Standing) -> None:
    with pytest.raises(SpecError, match="either `claim`"):
        standing({"cluster.shared": {"capacity_gib": 10, "write_mb_s": 10, **shared}})


def test_an_unquoted_label_is_refused_with_the_cure(standing: Standing) -> None:
    with pytest.raises(SpecError, match="in quotes"):
        standing({"cluster.nodes.labels": {"nvidia.com/gpu.present": True}})


def test_a_recorded_spec_reads_back_as_itself(standing: Standing) -> None:
    spec = standing().spec
    assert Spec.model_validate_json(spec.model_dump_json()) == spec


def test_the_plan_has_only_the_specs_own_price(standing: Standing) -> None:
    spec = standing().spec
    plan = make_plan(spec, survey(spec))
    assert [line.name for line in plan.cost] == ["GPU nodes"]
    assert plan.totals.usd_per_hour.value == Decimal(80) and plan.totals.usd_per_hour_idle.value == 0
    assert plan.unpriced == () and plan.pilot == ()
    assert [stage.stage for stage in plan.clock][:2] == ["provision", "preflight"]


def test_without_a_price_the_plan_says_that_it_has_none(standing: Standing) -> None:
    spec = standing({"nodes.usd_per_hour": None}).spec
    assert make_plan(spec, survey(spec)).unpriced == ("GPU nodes",)


def test_the_plan_reckons_with_the_claims_own_rate(standing: Standing) -> None:
    """14 bytes a parameter, written and read back by four nodes at the claim's rate, within 1 % of rounding."""
    parameters = 873_531_392
    for rate in (500, 4000):
        spec = standing({"cluster.shared.write_mb_s": rate}).spec
        seconds = float(make_plan(spec, survey(spec)).figure("shared write").value)
        assert seconds == pytest.approx(2 * 14 * parameters / (rate * 1e6), rel=0.02)
