"""Every role over the graph: its limit, and to whom it is lent."""

from __future__ import annotations

import json

import pytest

from infra.rehearsal.aws.iam.policies import trusts
from tests.graph.engine import Graph

R, A = "us-east-1", "123456789012"


def role(name: str) -> str:
    return f"arn:aws:iam::{A}:role/{name}"


@pytest.fixture(scope="module")
def graphs(full: Graph, foundation: Graph) -> tuple[Graph, Graph]:
    return full, foundation


def test_every_role_of_the_stacks_is_under_the_boundary(graphs: tuple[Graph, Graph]) -> None:
    made = {one.name for graph in graphs for one in graph.of("Role") if one.type.startswith("aws:")}
    assert made == set(ASSUMED)
    for graph in graphs:
        for one in graph.of("Role"):
            if one.type.startswith("aws:"):
                assert one.inputs["permissionsBoundary"].endswith("olicy/bivouac_boundary_us-east-1"), one.name


SCHEDULES = f"arn:aws:scheduler:{R}:{A}:schedule-group/default"
BUDGETS = f"arn:aws:budgets::{A}:budget/*"
ASSUMED = {
    "guard": ("scheduler.amazonaws.com", {"aws:SourceAccount": A, "aws:SourceArn": SCHEDULES}),
    "builder-guard": ("scheduler.amazonaws.com", {"aws:SourceAccount": A, "aws:SourceArn": SCHEDULES}),
    "budget": ("budgets.amazonaws.com", {"aws:SourceAccount": A, "aws:SourceArn": BUDGETS}),
    "cluster": ("eks.amazonaws.com", {"aws:SourceAccount": A}),
    "node": ("ec2.amazonaws.com", {}),
    "builder": ("ec2.amazonaws.com", {}),
    "cni": ("pods.eks.amazonaws.com", {"aws:SourceAccount": A}),
    "steward": ("pods.eks.amazonaws.com", {"aws:SourceAccount": A}),
    "trainer": ("pods.eks.amazonaws.com", {"aws:SourceAccount": A}),
    "archive": ("pods.eks.amazonaws.com", {"aws:SourceAccount": A}),
}


@pytest.mark.parametrize("name", sorted(ASSUMED))
def test_a_role_is_lent_to_its_service_for_this_account_alone(graphs: tuple[Graph, Graph], name: str) -> None:
    service, told = ASSUMED[name]
    (own,) = [one for graph in graphs for one in graph.of("Role") if one.name == name and one.type.startswith("aws:")]
    trust = json.loads(own.inputs["assumeRolePolicy"])

    def lent(to: str, context: dict[str, str]) -> bool:
        return trusts(trust, [to], "sts:AssumeRole", {key.lower(): [value] for key, value in context.items()})

    assert lent(service, told)
    for other in ("lambda.amazonaws.com", role("operator"), f"arn:aws:iam::{A}:root", A):
        assert not lent(other, told), other
    for key in told:
        assert not lent(service, {**told, key: told[key].replace(A, "999999999999")}), key
        assert not lent(service, {one: value for one, value in told.items() if one != key}), key
