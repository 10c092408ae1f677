"""What the calls show that people may make on everything: none that botocore marks as a secret, but those that
`infra/ci/README.md` names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import botocore.session
import pytest
from botocore.exceptions import UnknownServiceError
from botocore.model import OperationModel, Shape

from infra.rehearsal.aws.iam.policies import listed
from tests.service_authorization import actions
from tests.unit.stack.iam_questions import Document, ask, may, role
from tests.unit.stack.test_who_may_do_what import WRITTEN, read

SHOWN = {
    # Named in infra/ci/README.md: neither call knows a resource.
    "ec2:DescribeLaunchTemplateVersions": "user data",
    "ec2:DescribeSpotInstanceRequests": "user data",
    # No secrets, though marked.
    "budgets:DescribeBudgetAction": "addresses of who is told",
    "budgets:DescribeBudgetActionsForBudget": "addresses of who is told",
    "events:ListTargetsByRule": "what a rule sends",
    "ssm:DescribeInstanceInformation": "addresses of machines",
    # FSx asks for this password in requests; what its answers show in its place no page says.
    **dict.fromkeys((f"fsx:Describe{kind}" for kind in ("Backups", "FileSystems", "Snapshots", "Volumes")), "ONTAP"),
}
MODELS = {"elasticloadbalancing": "elbv2", "servicequotas": "service-quotas", "tag": "resourcegroupstaggingapi"}
"""Prefix of actions -> botocore's name, where they differ."""


def test_nobody_sees_of_everything_what_is_marked_as_a_secret() -> None:
    """Of each policy for people."""
    marked = {action for name in WRITTEN for action in marked_on_everything(read(*WRITTEN[name]))}
    assert marked == set(SHOWN)


def marked_on_everything(documents: list[Document]) -> Iterator[str]:
    """Yield the actions that a principal of these policies may ask of `*`, and whose answer has a marked member."""
    patterns = {
        pattern
        for document in documents
        for statement in document["Statement"]
        if statement["Effect"] == "Allow" and "*" in listed(statement["Resource"])
        for pattern in listed(statement["Action"])
    }
    for action in sorted(action for pattern in patterns for action in actions(pattern)):
        if has_secret(action) and may(ask(action, "*"), role("somebody"), documents):
            yield action


@cache
def has_secret(action: str) -> bool:
    service, _, name = action.partition(":")
    operation = operations(service).get(name.lower())
    output = operation.output_shape if operation else None
    return output is not None and any(shape.metadata.get("sensitive") for shape in shapes(output))


@cache
def operations(service: str) -> dict[str, OperationModel]:
    """Return the operations of a prefix of actions by their names in lower case."""
    try:
        model = botocore.session.get_session().get_service_model(MODELS.get(service, service))
    except UnknownServiceError:
        pytest.fail(f"botocore has no model for {service}: MODELS must name it")
    return {name.lower(): model.operation_model(name) for name in model.operation_names}


def shapes(shape: Shape, within: frozenset[str] = frozenset()) -> Iterator[Shape]:
    """Yield a shape and all that it is made of; one that contains itself once."""
    yield shape
    if shape.name in within:
        return
    parts = {"structure": lambda: shape.members.values(), "list": lambda: [shape.member], "map": lambda: [shape.value]}
    for part in parts.get(shape.type_name, list)():
        yield from shapes(part, within | {shape.name})
