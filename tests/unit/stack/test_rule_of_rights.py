"""The rule over the graph's rights, asked of roles and policies made by hand: one wrong thing each, wherever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.stack.rules.graph import UNKNOWN, Graph, GraphResource
from infra.stack.rules.rights import no_wildcard_rights
from tests.example import example_spec

SPEC = example_spec()
BOUNDARY = "arn:aws:iam::123456789012:policy/bivouac_boundary_us-east-1"
WORKER = "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"
PULL_ONLY = "arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryPullOnly"


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action: Any = "s3:GetObject", resource: Any = "arn:aws:s3:::b/x", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def lent(to: Any = "ec2.amazonaws.com", effect: str = "Allow") -> dict[str, Any]:
    return {"Effect": effect, "Action": "sts:AssumeRole", "Principal": {"Service": to}}


def a(kind: str, name: str, refers: tuple[str, ...] = (), **inputs: Any) -> GraphResource:
    folder = {"Role": "role", "RolePolicy": "rolePolicy", "Policy": "policy"}.get(kind, kind)
    kept = {"role": frozenset(f"Role {one}" for one in refers)} if refers else {}
    return GraphResource(f"{kind} {name}", f"aws:iam/{folder}:{kind}", name, inputs, kept)


def a_role(name: str, *trust: dict[str, Any], **inputs: Any) -> GraphResource:
    return a(
        "Role", name, **{"permissionsBoundary": BOUNDARY, "assumeRolePolicy": document(*trust or (lent(),)), **inputs}
    )


SOUND = (
    a_role("node"),
    a_role("steward"),
    a("RolePolicy", "steward", policy=document(
        allow(["s3:GetObject", "s3:PutObject"]), allow("ec2:DescribeInstances", "*")
    )),
    a("RolePolicy", "unknown", policy=UNKNOWN),
    a("RolePolicy", "none"),
    a("Policy", "boundary", policy=document(allow("ec2:*", "*"))),
    a("Policy", "freeze", policy=document({"Effect": "Deny", "Action": "*", "Resource": "*"})),
    a("RolePolicyAttachment", "node-worker", ("node",), policyArn=WORKER),
    a("RolePolicyAttachment", "node-pull", ("node",), policyArn=PULL_ONLY),
    GraphResource("Role k", "kubernetes:rbac.authorization.k8s.io/v1:Role", "k", {}),
)  # fmt: skip


def messages(*more: GraphResource) -> list[str]:
    graph = Graph()
    for one in (*SOUND, *more):
        graph.add(one)
    return [f"{right.place}: {right.message}: {right.seen}" for right in no_wildcard_rights(graph, SPEC)]


def test_what_is_sound_is_let_be() -> None:
    assert messages() == []


@pytest.mark.parametrize("kind", ["RolePolicy", "Policy"])
@pytest.mark.parametrize(
    ("statement", "words", "seen"),
    [
        (allow("s3:*"), "whole groups of actions", "s3:*"),
        (allow("s3:Get?bject"), "whole groups of actions", "s3:Get?bject"),
        (allow(["s3:GetObject", "s3:Put*"]), "whole groups of actions", "s3:Put*"),
        (allow("ec2:TerminateInstances", "*"), "for every resource", "ec2:TerminateInstances"),
        (allow(["ec2:DescribeInstances", "ec2:RunInstances"], "*"), "for every resource", "ec2:RunInstances"),
        (allow("s3:GetObject", ["arn:aws:s3:::b", "*"]), "for every resource", "s3:GetObject"),
        (allow("s3:GetObject", "arn:aws:s3:::*"), "for every resource", "s3:GetObject"),
        (allow("ec2:RunInstances", "arn:aws:ec2:us-east-1:123456789012:*"), "for every resource", "ec2:RunInstances"),
        ({"Effect": "Allow", "Action": "s3:GetObject"}, "for every resource", "s3:GetObject"),
        ({"Effect": "Allow", "NotAction": "iam:*", "Resource": "arn:aws:s3:::b"}, "all but what it names", "NotAction"),
        ({"Effect": "Allow", "Action": "s3:GetObject", "NotResource": "arn:aws:s3:::b"}, "all but", "NotResource"),
    ],
)
def test_a_statement_that_reaches_too_far_is_told_wherever_it_stands(
    kind: str, statement: dict[str, Any], words: str, seen: str
) -> None:
    for statements in ((statement,), (allow(), statement), (lent() | {"Effect": "Deny"}, statement)):
        (told,) = messages(a(kind, "wide", policy=document(*statements)))
        assert words in told and seen in told
    # By itself, not in a list; and as a document, not as text.
    (told,) = messages(a(kind, "wide", policy=json.dumps({"Statement": statement})))
    assert words in told
    (told,) = messages(a(kind, "wide", policy={"Statement": [statement]}))
    assert words in told
    assert messages(a(kind, "wide", policy=document(statement | {"Effect": "Deny"}))) == []


def test_only_what_is_seen_to_be_harmless_is_allowed_to_everything() -> None:
    harmless = ["autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities"]
    harmless += ["ec2:DescribeInstanceStatus", "ec2:DescribeInstances", "ecr:GetAuthorizationToken"]
    assert messages(a("RolePolicy", "x", policy=document(allow(harmless, "*")))) == []
    assert messages(a("RolePolicy", "x", policy=document(allow("EC2:describeinstances", "*")))) == []
    (told,) = messages(a("RolePolicy", "x", policy=document(allow([*harmless, "ec2:DescribeVpcs"], "*"))))
    assert "ec2:DescribeVpcs" in told and "ec2:DescribeInstances" not in told


def test_only_the_boundary_may_name_groups_and_no_role_may_be_called_so() -> None:
    wide = document(allow("ec2:*", "arn:aws:ec2:::x"))
    for kind, name in (("RolePolicy", "boundary"), ("Policy", "boundary-2")):
        (told,) = messages(a(kind, name, policy=wide))
        assert "whole groups" in told


def test_a_role_has_only_its_own_policies_of_aws() -> None:
    def attached(arn: Any, *roles: str) -> list[str]:
        return messages(a("RolePolicyAttachment", "more", roles, policyArn=arn))

    assert attached(WORKER, "node") == attached(PULL_ONLY, "node") == []
    for arn, roles in (
        (WORKER, ("steward",)), ("arn:aws:iam::aws:policy/AdministratorAccess", ("node",)), (WORKER, ()),
        (WORKER, ("node", "steward")), (WORKER.replace("iam::aws:", "iam::123456789012:"), ("node",)),
    ):  # fmt: skip
        (told,) = attached(arn, *roles)
        assert "not this role's" in told
    (told,) = attached(UNKNOWN, "node")
    assert "unknown to node" in told


@pytest.mark.parametrize("name", ["managedPolicyArns", "inlinePolicies"])
def test_a_role_carries_no_rights_inside(name: str) -> None:
    (told,) = messages(a_role("x", **{name: [WORKER]}))
    assert "rights of its own" in told and name in told
    assert messages(a_role("x", **{name: []})) == []


def test_a_role_is_under_a_boundary() -> None:
    for value in (None, ""):
        (told,) = messages(a_role("x", permissionsBoundary=value))
        assert "no permissions boundary" in told


@pytest.mark.parametrize(
    "principal",
    [
        "*", {"Service": "*"}, {"Service": "*.amazonaws.com"}, {"Service": ["ec2.amazonaws.com", "eks.amazonaws.com"]},
        {"AWS": "arn:aws:iam::123456789012:root"}, {"Service": "ec2.amazonaws.com", "AWS": "*"}, {}, None,
    ],
)  # fmt: skip
def test_a_role_is_lent_to_one_service(principal: Any) -> None:
    wrong = {"Effect": "Allow", "Action": "sts:AssumeRole"} | ({} if principal is None else {"Principal": principal})
    if principal is None:
        wrong["NotPrincipal"] = {"AWS": "x"}
    for trust in ((wrong,), (lent(), wrong)):
        (told,) = messages(a_role("x", *trust))
        assert "more than one AWS service" in told
    assert messages(a_role("x", lent(), wrong | {"Effect": "Deny"})) == []
    assert principal is not None or ("NotPrincipal" not in told and '"AWS": "x"' in told)


def test_a_way_to_rights_that_no_rule_reads_is_told() -> None:
    for kind in ("UserPolicyAttachment", "GroupPolicy", "PolicyAttachment", "RolePoliciesExclusive"):
        (told,) = messages(a(kind, "x"))
        assert "no rule reads" in told and kind in told
    assert messages(a("InstanceProfile", "x")) == messages(GraphResource("u", "aws:ec2/vpc:Vpc", "v", {})) == []
