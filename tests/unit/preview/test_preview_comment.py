"""The comment on a pull request: what is wrong comes first, what holds state is flagged, the bill's change is told."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import yaml

from infra.engine.drift import PropertyDifference, Row, StackLook
from infra.engine.explain import CostChange
from infra.errors import UserError
from infra.plan.checks.finding import Level
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.preview import markdown
from infra.preview.preview import PlanChange, Preview, as_facts, loses, plan_changes
from infra.stack.rules import RuleFinding
from tests.example import example_spec
from tests.root import ROOT

URN = "urn:pulumi:campaign-x::bivouac::bivouac:infra:{0}${1}::{2}"


def row(component: str, kind: str, name: str, verb: str, *changes: PropertyDifference) -> Row:
    return Row(URN.format(component, kind, name), verb, changes)


CLUSTER = row(
    "Cluster",
    "aws:eks/cluster:Cluster",
    "cluster",
    "replace",
    PropertyDifference("vpcConfig.subnetIds", "a", "b", True),
)
SUBNET = row("Network", "aws:ec2/subnet:Subnet", "gpu", "create")
ROLE = row("Identity", "aws:iam/rolePolicy:RolePolicy", "steward", "update", PropertyDifference("policy", "old", "new"))


def a_preview(*found: RuleFinding, rows: tuple[Row, ...] = (CLUSTER, SUBNET, ROLE), **more: Any) -> Preview:
    fields: dict[str, Any] = {
        "campaign": "x", "looks": (StackLook("campaign-x", planned=rows),), "refused": (), "findings": found,
        "costs": (CostChange("GPU nodes", Decimal("13.76"), Decimal("10044.80"), Decimal("3.71")),),
        "total_usd": Decimal("4711.5"), "changed": None,
    }  # fmt: skip
    return Preview(**fields | more)


def finding(level: Level) -> RuleFinding:
    return RuleFinding(level=level, rule="efa-devices", resource="LaunchTemplate gpu-nodes", message="too | few",
                   seen="31 of 32", cure="attach all")  # fmt: skip


def test_an_error_makes_the_preview_fail_and_stands_first() -> None:
    seen = a_preview(finding(Level.ERROR))
    text = markdown.comment(seen)
    assert seen.exit_code == UserError.exit_code and "must not be merged" in text.splitlines()[1]
    assert text.startswith(markdown.MARK) and "too \\| few (`efa-devices`)" in text
    assert text.index("#### Findings") < text.index("#### Cost") < text.index("<details>")
    assert a_preview(finding(Level.WARNING)).exit_code == 2
    assert a_preview(rows=()).exit_code == 0 and "nothing to change" in markdown.comment(a_preview(rows=()))


def test_changes_are_grouped_by_component_and_what_holds_state_is_flagged() -> None:
    text = markdown.comment(a_preview())
    assert text.index("**Cluster**") < text.index("**Network**") < text.index("**Identity**")
    lost = text[text.index("#### Replaced or deleted though it holds state") : text.index("#### Cost")]
    assert "**Cluster cluster**: replace, forced by `vpcConfig.subnetIds`" in lost and "Subnet" not in lost
    assert "! Cluster cluster  replace  holds state" in text and "+ Subnet gpu  create\n" in text
    assert [loses(one) for one in (CLUSTER, SUBNET, ROLE)] == [True, False, False]


def test_the_bill_is_told_for_a_month_and_for_the_campaign() -> None:
    text = markdown.comment(a_preview(changed=(PlanChange("GPU nodes", Decimal(100), Decimal(250), Decimal("8000")),)))
    assert "| GPU nodes | 100.00 | 250.00 | +8,000.00 |" in text and "| **together** | 100.00 | 250.00" in text
    assert "| GPU nodes | +10,044.80 | +3.71 |" in text and "**4,711.50 USD**" in text


def test_twice_the_nodes_change_the_lines_that_depend_on_them() -> None:
    four, eight = (make_plan(spec, survey(spec)) for spec in (example_spec(), example_spec(nodes={"count": 8})))
    lines = {change.what: change for change in plan_changes(four, eight)}
    hourly = next(line.usd_per_hour for line in four.cost if line.name == "GPU nodes")
    assert lines["GPU nodes"].month_usd == hourly * 730
    assert "EKS control plane" not in lines or lines["EKS control plane"].month_usd == 0
    assert plan_changes(four, four) == ()


def test_a_comment_stays_within_githubs_limit_and_says_that_it_was_cut() -> None:
    many = tuple(
        row("Network", "aws:ec2/subnet:Subnet", f"s{n}", "update", PropertyDifference("p", "x" * 80, "y" * 80))
        for n in range(900)
    )
    text = markdown.comment(a_preview(rows=many))
    assert len(text) < 65_536 and "Cut here" in text


def test_what_cannot_be_previewed_is_a_comment_too() -> None:
    text = markdown.refusal_comment("x", UserError("its teardown has begun", seen="x", cure="another name"))
    assert "must not be merged" in text and "| its teardown has begun | x | another name |" in text


def test_machines_get_the_same_facts() -> None:
    facts = as_facts(a_preview(finding(Level.ERROR)))
    assert facts["ok"] is False and facts["findings"][0]["rule"] == "efa-devices"
    assert facts["stacks"][0]["planned"][0]["component"] == "Cluster" and facts["total_usd"] == Decimal("4711.5")


def test_the_workflow_may_read_code_take_the_role_and_comment_and_nothing_else() -> None:
    flow = yaml.safe_load((ROOT / ".github/workflows/preview.yml").read_text())
    assert flow["permissions"] == {"contents": "read", "id-token": "write", "pull-requests": "write"}
    assert set(flow[True]) == {"pull_request"}, "`on`; never pull_request_target, which runs a fork's code with rights"
    job = flow["jobs"]["preview"]
    assert "head.repo.full_name == github.repository" in job["if"] and "permissions" not in job
    (action,) = [step for step in job["steps"] if step.get("uses") == "./.github/actions/bivouac"]
    assert action["with"]["command"] == "preview" and "role-to-assume" in action["with"]


def test_the_role_of_the_workflow_reads_only() -> None:
    policy = json.loads((ROOT / "infra/ci/preview-role.json").read_text())
    verbs = ("BatchGet", "Describe", "Get", "List", "View")
    actions = [
        action
        for one in policy["Statement"]
        for action in ([one["Action"]] if isinstance(one["Action"], str) else one["Action"])
    ]
    # To decrypt is to read, and only what the role may read from S3: where a customer's key encrypts the state.
    key, engines = [one for one in policy["Statement"] if one["Action"] == "kms:Decrypt"]
    assert engines["Condition"] == {"StringEquals": {"kms:EncryptionContext:bivouac": "pulumi"}}
    assert set(key["Condition"]["StringLike"]) == {"kms:ViaService", "kms:EncryptionContext:aws:s3:arn"}
    assert key["Condition"]["StringLike"]["kms:EncryptionContext:aws:s3:arn"] == "arn:aws:s3:::bivouac-state-*"
    actions = [action for action in actions if action != "kms:Decrypt"]
    assert all(action.partition(":")[2].startswith(verbs) for action in actions)
    assert not {"s3:*", "s3:Get*", "secretsmanager:GetSecretValue", "ecr:GetAuthorizationToken"} & set(actions)
    trust = json.loads((ROOT / "infra/ci/preview-trust.json").read_text())["Statement"][0]
    assert trust["Action"] == "sts:AssumeRoleWithWebIdentity"
    whose = trust["Condition"]["StringEquals"]["token.actions.githubusercontent.com:sub"]
    assert whose == "repo:OWNER/REPOSITORY:environment:bivouac-preview", "not any branch's code, nor a fork's"
    flow = yaml.safe_load((ROOT / ".github/workflows/preview.yml").read_text())
    assert flow["jobs"]["preview"]["environment"] == "bivouac-preview"
