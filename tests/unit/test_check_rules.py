"""Every rule has a spec that it refuses; the base spec passes them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from infra.checks import RULES, Level, rule_name
from infra.facts import Facts
from infra.spec import MAX_NAME

FRESH = date(2026, 8, 1)
P5EN_BLOCK = {
    "nodes.instance_type": "p5en.48xlarge",
    "nodes.capacity": "capacity-block",
    "nodes.reservation_id": "cr-0123456789abcdef0",
    "nodes.usd_per_hour": "41.61",
    "training.global_batch": 64,
    "money.budget_usd": 5000,
}
PERSISTENT_EFA = {"storage.shared.efa": True, "storage.shared.throughput_mbs_per_tib": 1000, "money.budget_usd": 500}
ON_AWS = {"target": "aws", "rehearsal": None}
NO_WAY_OUT = {**ON_AWS, "network.egress": "endpoints"}
PRIVATE = {"network.api_endpoint": "private"}
DRIVER = {"vpc_id": "vpc-0123456789abcdef0", "cidr": "10.7.0.0/16", "route_table_ids": ["rtb-0123456789abcdef0"]}
HUGE = {"layers": 96, "width": 12288, "heads": 96, "context": 2048, "vocabulary": 50304}


@dataclass(frozen=True)
class Row:
    rule: str
    level: Level
    field: str
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    facts: Callable[[Facts], Facts] | None = None
    today: date = FRESH
    cure: str = ""
    """What the cure must mention."""

    def __str__(self) -> str:
        return f"{self.rule}-{'-'.join(str(value)[:20] for value in self.changes.values()) or 'facts'}"


def _quota(vcpus: int) -> Callable[[Facts], Facts]:
    def bend(facts: Facts) -> Facts:
        offers = tuple(offer.model_copy(update={"quota_vcpus": vcpus}) for offer in facts.offers)
        return facts.model_copy(update={"offers": offers})

    return bend


def _account(account: str) -> Callable[[Facts], Facts]:
    return lambda facts: facts.model_copy(update={"account": account})


E, W, I = Level.ERROR, Level.WARNING, Level.INFO  # noqa: E741
REFUSED = (
    Row("names-fit-aws", E, "campaign", {"campaign": "c" * (MAX_NAME + 1)}, cure=str(MAX_NAME)),
    Row("names-fit-aws", E, "campaign", {"campaign": "c" * 60}, cure="shorten"),
    Row("account-is-that-of-the-credentials", E, "account", facts=_account("999999999999"), cure="AWS_PROFILE"),
    Row("zone-belongs-to-the-region", E, "region", {"region": "Virginia"}, cure="us-east-1"),
    Row("zone-belongs-to-the-region", E, "zone", {"zone": "us-west-2a"}, cure="us-east-1a"),
    Row("zone-belongs-to-the-region", E, "zone", {"zone": "us-east-1"}, cure="us-east-1a"),
    Row("zone-belongs-to-the-region", E, "second_zone", {"second_zone": "us-east-1a"}, cure="another zone"),
    Row("network-is-large-enough-and-apart", E, "network.cidr", {"network.cidr": "10.42.0.1/16"}, cure="10.42.0.0/16"),
    Row("network-is-large-enough-and-apart", E, "network.cidr", {"network.cidr": "10.42.0.0/24"}),
    Row("network-is-large-enough-and-apart", E, "network.cidr", {"network.cidr": "172.20.0.0/16"}, cure="stay out"),
    Row("network-is-large-enough-and-apart", E, "network.cidr", {"network.cidr": "8.8.0.0/16"}),
    Row("kubernetes-version-is-supported", E, "kubernetes", {"kubernetes": "1.99"}, cure="1.36"),
    Row("kubernetes-version-is-supported", E, "kubernetes", {"kubernetes": "1.33"}, cure="1.36"),
    Row("kubernetes-version-is-supported", W, "kubernetes", {"kubernetes": "1.34"}, today=date(2026, 11, 21)),
    Row("kubernetes-version-is-supported", I, "kubernetes", today=date(2027, 12, 1), cure="refresh"),
    Row(
        "instance-type-is-in-the-catalogue",
        E,
        "nodes.instance_type",
        {"nodes.instance_type": "p5.4xlrage"},
        cure="p5.4xlarge",
    ),
    Row("trainer-runs-on-the-accelerator", E, "nodes.instance_type", {"nodes.instance_type": "trn1.32xlarge"}),
    Row("ranks-fit-the-accelerators", E, "nodes.ranks_per_node", {"nodes.ranks_per_node": 2}, cure="1 or less"),
    Row(
        "ranks-fit-the-accelerators",
        W,
        "nodes.ranks_per_node",
        {"nodes.instance_type": "p5.48xlarge", "nodes.ranks_per_node": 4, "training.global_batch": 32},
    ),
    Row(
        "what-is-bought-is-sold",
        E,
        "nodes.placement_group",
        {**P5EN_BLOCK, "nodes.placement_group": True},
        cure="remove",
    ),
    Row(
        "what-is-bought-is-sold",
        E,
        "nodes.capacity",
        {**P5EN_BLOCK, "nodes.instance_type": "g6e.48xlarge"},
        cure="on-demand",
    ),
    Row("what-is-bought-is-sold", E, "nodes.count", {**P5EN_BLOCK, "nodes.count": 65}, cure="64"),
    Row("what-is-bought-is-sold", E, "nodes.reservation_id", {"nodes.capacity": "reservation"}),
    Row("what-is-bought-is-sold", E, "nodes.reservation_id", {"nodes.reservation_id": "cr-0123456789"}),
    Row(
        "what-is-bought-is-sold",
        E,
        "nodes.reservation_id",
        {**P5EN_BLOCK, "nodes.reservation_id": "my-block"},
        cure="cr-",
    ),
    Row(
        "what-is-bought-is-sold",
        E,
        "nodes.reservation_id",
        {**P5EN_BLOCK, "nodes.reservation_id": "open"},
        cure="cr-",
    ),
    Row("what-is-bought-is-sold", E, "nodes.block_end", {"nodes.block_end": "2026-09-01T11:30:00Z"}, cure="remove"),
    Row(
        "block-leaves-room-for-the-plan",
        E,
        "nodes.block_end",
        {**P5EN_BLOCK, "nodes.block_end": "2026-08-01T00:50:00Z"},
        cure="longer",
    ),
    Row(
        "absent-figures-are-told",
        I,
        "nodes.instance_type",
        {**P5EN_BLOCK, "nodes.count": 2, "target": "aws", "rehearsal": None},
        cure="bivouac catalogue",
    ),
    Row(
        "spot-quota-is-known",
        W,
        "nodes.capacity",
        {"nodes.instance_type": "p6-b200.48xlarge", "nodes.capacity": "spot"},
        cure="Service Quotas",
    ),
    Row("type-is-for-sale", W, "nodes.capacity", {"nodes.instance_type": "p5e.48xlarge"}, cure="capacity-block"),
    Row("quota-allows-the-nodes", E, "nodes.count", facts=_quota(31), cure="Service Quotas"),
    Row(
        "preflight-profile-is-known", E, "preflight.profile", {"preflight.profile": "this-machin"}, cure="this-machine"
    ),
    Row("global-batch-divides", E, "training.global_batch", {"training.global_batch": 12}, cure="8 or 16"),
    Row("global-batch-divides", E, "training.global_batch", {"training.global_batch": 6}, cure="write 8"),
    Row("heads-divide-the-width", E, "training.model.width", {"training.model.heads": 7}, cure="196"),
    Row("model-fits-the-accelerator", E, "training.model", {"training.model": HUGE}, cure="zero_stage"),
    Row(
        "model-fits-the-accelerator",
        W,
        "training.model",
        {"training.model": {"layers": 38, "width": 4096, "heads": 32, "context": 512, "vocabulary": 32000}}
        | {"training.zero_stage": 2, "nodes.count": 2, "training.precision": "bfloat16"},
    ),
    Row(
        "step-estimate-is-plausible",
        W,
        "training.step_seconds_estimate",
        {"training.step_seconds_estimate": 1e-5},
        cure="40 %",
    ),
    Row(
        "learning-rate-makes-sense",
        E,
        "training.optimizer.minimum_learning_rate",
        {"training.optimizer.minimum_learning_rate": 0.1},
    ),
    Row("learning-rate-makes-sense", W, "training.optimizer.warmup_steps", {"training.optimizer.warmup_steps": 100}),
    Row("data-source-exists", E, "data.source", {"data.source": "/no/such/folder"}, cure="python:stdlib"),
    Row("data-source-exists", E, "data.pattern", {"data.pattern": "**/*.nothing"}),
    Row("data-source-exists", E, "data.pattern", {"data.pattern": "/absolute/*.py"}),
    Row(
        "lustre-throughput-is-a-tier",
        E,
        "storage.shared.throughput_mbs_per_tib",
        {"storage.shared.throughput_mbs_per_tib": 300},
        cure="250",
    ),
    Row(
        "lustre-throughput-is-a-tier",
        E,
        "storage.shared.throughput_mbs_per_tib",
        {"storage.shared.deployment": "SCRATCH_2", "storage.shared.throughput_mbs_per_tib": 500},
        cure="remove",
    ),
    Row(
        "lustre-capacity-is-a-step",
        E,
        "storage.shared.capacity_gib",
        {"storage.shared.capacity_gib": 1000},
        cure="1200",
    ),
    Row(
        "lustre-capacity-is-a-step",
        E,
        "storage.shared.capacity_gib",
        {"storage.shared.capacity_gib": 3600},
        cure="4800",
    ),
    Row(
        "lustre-capacity-is-a-step",
        E,
        "storage.shared.capacity_gib",
        {**PERSISTENT_EFA, "storage.shared.capacity_gib": 7200},
        cure="9600",
    ),
    Row(
        "lustre-efa-is-possible",
        E,
        "storage.shared.efa",
        {"storage.shared.efa": True, "storage.shared.deployment": "SCRATCH_2"},
        cure="PERSISTENT_2",
    ),
    Row(
        "lustre-efa-is-possible",
        E,
        "storage.shared.efa",
        {**PERSISTENT_EFA, "nodes.instance_type": "trn2.48xlarge", "storage.shared.capacity_gib": 9600},
        cure="efa: false",
    ),
    Row(
        "lustre-efa-is-possible",
        E,
        "storage.shared.efa",
        {**PERSISTENT_EFA, "nodes.count": 1024, "storage.shared.capacity_gib": 9600},
        cure="TCP",
    ),
    Row(
        "lustre-metadata-is-for-sale",
        E,
        "storage.shared.metadata_iops",
        {"storage.shared.metadata_iops": 4000},
        cure="6000",
    ),
    Row(
        "lustre-metadata-is-for-sale",
        E,
        "storage.shared.metadata_iops",
        {"storage.shared.metadata_iops": "automatic", "storage.shared.deployment": "SCRATCH_2"},
        cure="PERSISTENT_2",
    ),
    Row("local-disks-suit-their-layout", E, "storage.local.layout", {"storage.local.layout": "RAID10"}, cure="RAID0"),
    Row("a-private-cluster-can-be-entered", E, "network.api_endpoint", {**ON_AWS, **PRIVATE}, cure="driver_vpc"),
    Row(
        "a-private-cluster-can-be-entered",
        E,
        "network.api_allowed_cidrs",
        {**PRIVATE, "network.api_allowed_cidrs": ["203.0.113.0/24"]},
        cure="public",
    ),
    Row(
        "networks-are-networks-and-apart",
        E,
        "network.api_allowed_cidrs",
        {"network.api_allowed_cidrs": ["203.0.113.7/24"]},
        cure="203.0.113.0/24",
    ),
    Row(
        "networks-are-networks-and-apart",
        E,
        "network.driver_vpc.cidr",
        {**PRIVATE, "network.driver_vpc": {**DRIVER, "cidr": "ten"}},
        cure="10.0.0.0/16",
    ),
    Row(
        "networks-are-networks-and-apart",
        E,
        "network.cidr",
        {**PRIVATE, "network.driver_vpc": {**DRIVER, "cidr": "10.42.128.0/20"}},
        cure="another",
    ),
    Row("efa-is-handed-out-as-can-be", E, "addons.efa", {"addons.efa": "dra"}, cure="device-plugin"),
    Row(
        "efa-is-handed-out-as-can-be",
        E,
        "addons.efa",
        {**ON_AWS, "addons.efa": "dra", "kubernetes": "1.34"},
        cure="1.35",
    ),
    Row("images-come-from-somewhere", W, "addons.image_mirror", NO_WAY_OUT, cure="image_mirror"),
    Row(
        "images-come-from-somewhere",
        E,
        "addons.image_mirror",
        {**NO_WAY_OUT, "addons.image_mirror": "ghcr.io/mirror"},
        cure="us-east-1",
    ),
    Row(
        "images-come-from-somewhere",
        E,
        "image.base",
        {**NO_WAY_OUT, "image.base": "nvcr.io/nvidia/pytorch:26.01-py3"},
        cure="ECR",
    ),
    Row(
        "lustre-metadata-is-for-sale",
        W,
        "storage.shared.metadata_iops",
        {"storage.shared.metadata_iops": 24000},
        cure="automatic",
    ),
    Row(
        "the-key-is-one-that-can-be-used",
        E,
        "encryption.key_arn",
        {"encryption.customer_key": True, "encryption.key_arn": "arn:aws:kms:eu-west-1:123456789012:key/1-2"},
        cure="us-east-1",
    ),
    Row(
        "the-key-is-one-that-can-be-used",
        E,
        "encryption.customer_key",
        {"encryption.key_arn": "arn:aws:kms:us-east-1:123456789012:key/1-2"},
        cure="remove key_arn",
    ),
    Row(
        "the-key-is-one-that-can-be-used",
        E,
        "storage.shared.deployment",
        {"encryption.customer_key": True, "storage.shared.deployment": "SCRATCH_2"},
        cure="PERSISTENT_2",
    ),
    Row(
        "the-archive-is-kept-as-s3-can",
        E,
        "storage.archive.move_after",
        {"storage.archive": {"storage_class": "STANDARD_IA", "move_after": "7d"}},
        cure="30d",
    ),
    Row(
        "the-archive-is-kept-as-s3-can",
        E,
        "storage.archive.move_after",
        {"storage.archive": {"storage_class": "GLACIER_IR", "move_after": "36h"}},
        cure="2d",
    ),
    Row(
        "the-archive-is-kept-as-s3-can",
        W,
        "storage.archive.storage_class",
        {"storage.archive.storage_class": "DEEP_ARCHIVE"},
        cure="GLACIER_IR",
    ),
    Row("the-archive-is-kept-as-s3-can", E, "storage.archive.lock_for", {"storage.archive.lock_for": "90m"}, cure="1d"),
    Row("the-archive-is-kept-as-s3-can", W, "storage.archive.lock_for", {"storage.archive.lock_for": "90d"}),
    Row("checkpoints-fit-the-local-tier", E, "checkpoint.keep_local", {"checkpoint.keep_local": 2_000_000}),
    Row("checkpoints-fit-the-shared-tier", E, "storage.shared.capacity_gib", {"checkpoint.keep_shared": 2_000_000}),
    Row(
        "shared-tier-keeps-up",
        W,
        "checkpoint.shared_every",
        {"checkpoint.every_steps": 1, "training.step_seconds_estimate": 0.05},
        cure="shared_every: 3",
    ),
    Row(
        "saving-costs-little",
        W,
        "checkpoint.every_steps",
        {"checkpoint.every_steps": 1, "training.step_seconds_estimate": 0.1},
        cure="10 or more",
    ),
    Row(
        "an-emergency-save-fits-the-grace-period",
        W,
        "training.collective_timeout_s",
        {"training.model": {"layers": 32, "width": 4096, "heads": 32, "context": 512, "vocabulary": 32000}},
        cure="more throughput",
    ),
    Row("a-checkpoint-reaches-the-shared-tier", W, "checkpoint.shared_every", {"checkpoint.shared_every": 10}),
    Row("an-older-checkpoint-is-kept", W, "checkpoint.keep_shared", {"checkpoint.keep_shared": 1}, cure="2 or more"),
    Row("planned-cost-is-within-the-budget", E, "money.budget_usd", {"money.budget_usd": 3}, cure="bivouac plan"),
    Row("deadline-caps-the-cost-below-the-budget", W, "money.deadline", {"money.deadline": "8h"}),
    Row("deadline-leaves-room-for-the-plan", E, "money.deadline", {"money.deadline": "30m"}, cure="2h"),
    Row("deadline-leaves-room-for-the-plan", W, "money.deadline", {"money.deadline": "68m"}, cure="failures take time"),
    Row(
        "everything-has-a-price",
        W,
        "nodes.instance_type",
        {k: v for k, v in P5EN_BLOCK.items() if k != "nodes.usd_per_hour"},
        cure="nodes.usd_per_hour",
    ),
    Row(
        "everything-has-a-price",
        W,
        "nodes.system_instance_type",
        {"nodes.system_instance_type": "m9.giant"},
        cure="prices",
    ),
    Row("everything-has-a-price", W, "storage.shared", {"storage.shared.throughput_mbs_per_tib": 300}),
    Row("prices-are-fresh", W, "money.budget_usd", today=date(2026, 11, 21), cure="refresh"),
    Row("prices-are-of-the-region", W, "region", {"region": "eu-west-1", "zone": "eu-west-1a"}),
    Row("budget-alarm-reaches-someone", I, "money.alarm_email", {"money.alarm_email": None}),
    Row("budget-alarm-reaches-someone", E, "money.alarm_email", {"money.alarm_email": "nobody"}),
    Row("timeouts-stand-in-order", E, "recovery.heartbeat_timeout", {"recovery.heartbeat_timeout": "60s"}),
    Row("timeouts-stand-in-order", E, "training.collective_timeout_s", {"training.collective_timeout_s": 60}),
    Row("timeouts-stand-in-order", E, "recovery.hang_timeout", {"recovery.hang_timeout": "2m"}),
    Row("timeouts-stand-in-order", E, "recovery.startup_timeout", {"recovery.startup_timeout": "5h"}),
    Row("timeouts-stand-in-order", E, "recovery.capacity_timeout", {"recovery.capacity_timeout": "5h"}),
    Row("timeouts-outlast-healthy-work", E, "training.collective_timeout_s", {"training.step_seconds_estimate": 12}),
    Row("timeouts-outlast-healthy-work", W, "training.collective_timeout_s", {"training.evaluate_batches": 60}),
    Row("faults-are-in-range", E, "rehearsal.faults.0.kill_node", {"rehearsal.faults.0.kill_node": 2}, cure="0 to 1"),
    Row("faults-are-in-range", E, "rehearsal.faults.0.after_step", {"rehearsal.faults.0.after_step": 100}, cure="100"),
    Row("faults-are-in-range", E, "recovery.node_replacements", {"recovery.node_replacements": 0}, cure="1 or more"),
    Row(
        "faults-come-after-a-checkpoint",
        E,
        "rehearsal.faults.0.after_step",
        {"rehearsal.faults.0.after_step": 10},
        cure="more than 10",
    ),
)
PASSED: tuple[dict[str, Any], ...] = (
    {},
    {"campaign": "c" * MAX_NAME},
    {"second_zone": "us-east-1f"},
    {"network.cidr": "192.168.16.0/20"},
    P5EN_BLOCK,
    {**P5EN_BLOCK, "nodes.block_end": "2026-08-08T11:30:00Z"},
    {"nodes.capacity": "reservation", "nodes.reservation_id": "open"},
    {
        "nodes.capacity": "reservation",
        "nodes.reservation_id": "arn:aws:resource-groups:us-east-1:123456789012:group/training",
    },
    {**PERSISTENT_EFA, "storage.shared.capacity_gib": 9600},
    {"storage.shared.deployment": "SCRATCH_2"},
    {"storage.shared.deployment": "SCRATCH_2", "storage.shared.throughput_mbs_per_tib": None},
    {"storage.shared.capacity_gib": 2400},
    {"network.egress": "endpoints"},
    {**PRIVATE, "network.driver_vpc": DRIVER},
    {"network.api_allowed_cidrs": ["203.0.113.0/24"]},
    {"encryption.customer_key": True},
    {"encryption.customer_key": True, "encryption.key_arn": "arn:aws:kms:us-east-1:123456789012:key/1-2"},
    {"storage.shared.metadata_iops": "automatic"},
    {"storage.archive": {"storage_class": "GLACIER_IR", "move_after": "1d"}},
    {"money.alarm_email": None, "money.alarm_topic_arn": "arn:aws:sns:us-east-1:123456789012:pager"},
    {"checkpoint": None, "rehearsal": None},
    {"rehearsal.faults": []},
    {"preflight.profile": None},
)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_a_rule_refuses_with_place_value_and_cure(row: Row, findings: Any) -> None:
    seen = [finding for finding in findings(row.changes, row.facts, row.today) if finding.rule == row.rule]
    match = [finding for finding in seen if (finding.level, finding.field) == (row.level, row.field)]
    assert match, f"{row.rule} found {seen}"
    assert match[0].seen and match[0].cure and row.cure in match[0].cure
    assert match[0].line >= 1


@pytest.mark.parametrize("changes", PASSED, ids=str)
def test_a_sound_spec_has_no_finding(changes: dict[str, Any], findings: Any) -> None:
    assert findings(changes) == ()


def test_every_rule_has_a_case_that_it_refuses() -> None:
    assert {row.rule for row in REFUSED} | {"lustre-efa-is-possible"} == {rule_name(rule) for rule in RULES}


def test_every_rule_says_what_it_wants() -> None:
    assert [rule_name(rule) for rule in RULES if not rule.__doc__] == []


def test_no_finding_hides_another(findings: Any) -> None:
    wrong = {
        "nodes.ranks_per_node": 3,
        "training.global_batch": 7,
        "training.model.heads": 7,
        "zone": "eu-west-1a",
        "money.budget_usd": 1,
        "data.source": "/no/such/folder",
        "kubernetes": "1.20",
        "storage.shared.capacity_gib": 1,
        "rehearsal.faults.0.kill_node": 9,
        "recovery.heartbeat_timeout": "2h",
    }
    found = findings(wrong)
    assert {finding.field.partition(".")[0] for finding in found} >= {path.partition(".")[0] for path in wrong}
    assert [finding.line for finding in found] == sorted(finding.line for finding in found)


def test_findings_point_at_the_line_of_the_field(findings: Any, spec_file: Any) -> None:
    (finding,) = findings({"training.global_batch": 12})
    text = finding.file.read_text().splitlines()
    assert text[finding.line - 1].strip() == "global_batch: 12"


def test_unknown_accounts_and_quotas_are_no_finding(findings: Any) -> None:
    assert findings(facts=_account("123456789012")) == ()
    assert findings(facts=_quota(32)) == ()
