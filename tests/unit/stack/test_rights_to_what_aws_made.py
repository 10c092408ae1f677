"""Operator and closer may remove what AWS puts into a campaign's VPC, known by marks that AWS writes, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.stack.iam_questions import OWN, Ask, Document, arn_of, ask, ec2, granted, refused, role
from tests.unit.stack.test_who_may_do_what import OPERATOR, read

GUARDDUTY: dict[str, Any] = {"aws:ResourceTag/GuardDutyManaged": "true"}
EKS: dict[str, Any] = {"aws:ResourceTag/aws:eks:cluster-name": "bivouac-train"}
MAY = [
    ask("ec2:DeleteVpcEndpoints", ec2("vpc-endpoint"), GUARDDUTY),
    ask("ec2:DeleteSecurityGroup", ec2("security-group"), GUARDDUTY),
    ask("ec2:RevokeSecurityGroupIngress", ec2("security-group"), GUARDDUTY),
    ask("ec2:RevokeSecurityGroupEgress", ec2("security-group"), GUARDDUTY),
    ask("ec2:DeleteSecurityGroup", ec2("security-group"), EKS),
    ask("ec2:RevokeSecurityGroupIngress", ec2("security-group"), EKS),
]
MUST_NOT = [
    *(ask(action, ec2(kind)) for action, kind in (
        ("ec2:DeleteVpcEndpoints", "vpc-endpoint"), ("ec2:DeleteSecurityGroup", "security-group"))),
    *(ask("ec2:DeleteSecurityGroup", ec2("security-group"), {one: "false" if one in GUARDDUTY else "payroll"})
      for one in (*GUARDDUTY, *EKS)),
    ask("ec2:TerminateInstances", ec2("instance"), GUARDDUTY),
    ask("ec2:DeleteVpc", ec2("vpc"), GUARDDUTY),
    ask("ec2:ModifyVpcEndpoint", ec2("vpc-endpoint"), GUARDDUTY),
    ask("ec2:CreateTags", ec2("vpc-endpoint"), {"aws:TagKeys": "GuardDutyManaged"}),
]  # fmt: skip
WHO = {"operator": (role("operator"), read(*OPERATOR)), "closer": (arn_of("closer"), OWN["closer"])}


@pytest.mark.parametrize(("arn", "policies"), WHO.values(), ids=WHO)
def test_they_remove_what_carries_awss_marks_and_cannot_set_them(arn: str, policies: list[Document]) -> None:
    nothing: list[Ask] = []
    assert refused(MAY, arn, policies) == nothing and granted(MUST_NOT, arn, policies) == nothing
