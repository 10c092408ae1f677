"""EC2 is asked for the states of the campaign's own instances, in pages, and forgets those that ended long ago."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from lightkube.resources.core_v1 import Node

from infra.aws.account import Account
from infra.cluster.nodes import GpuNodes
from infra.rehearsal.aws.world import World
from infra.spec.names import Names
from tests.example import example_spec
from tests.rehearsal.aws_account import Account as Client
from tests.rehearsal.aws_account import launch

MOST = 100


def node(instance: str) -> Node:
    document = {"metadata": {"name": instance}, "spec": {"providerID": f"aws:///us-east-1a/{instance}"}}
    made = Node.from_dict(document)
    assert isinstance(made, Node)
    return made


def nodes_of(here: Account, instances: list[str]) -> GpuNodes:
    client: Any = SimpleNamespace(list=lambda kind, labels: [node(instance) for instance in instances])
    return GpuNodes(here, client, Names(example_spec()), lambda: None)


def states(nodes: GpuNodes) -> dict[str, str]:
    return {one.instance: one.instance_state for one in nodes.facts()}


def test_only_the_named_instances_are_asked_about_and_one_that_ec2_forgot_hides_no_other(
    world: World, here: Account, aws: Client
) -> None:
    ours, ended = launch(world), launch(world)
    launch(world)  # somebody else's
    aws.ec2.terminate_instances(InstanceIds=[ended])
    forgotten = [f"i-{number:017x}" for number in range(1, 231)]
    asked: list[list[str]] = []
    events = here.client("ec2").meta.events

    def note(params: dict[str, Any], **_: Any) -> None:
        asked.append(params["InstanceIds"])

    events.register("provide-client-params.ec2.DescribeInstanceStatus", note)
    seen = states(nodes_of(here, [*forgotten[:150], ours, *forgotten[150:], ended]))
    events.unregister("provide-client-params.ec2.DescribeInstanceStatus", note)
    assert (seen.pop(ours), seen.pop(ended)) == ("running", "gone")
    assert set(seen) == set(forgotten) and set(seen.values()) == {"unknown"}
    assert all(0 < len(one) <= MOST for one in asked) and {one for page in asked for one in page} == {
        *forgotten, ours, ended,
    }  # fmt: skip


def test_another_refusal_makes_every_state_unknown_and_is_kept(
    world: World, here: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = nodes_of(here, [launch(world)])
    for code, message in (("UnauthorizedOperation", "no"), ("InvalidInstanceID.NotFound", "an answer that names none")):
        refusal = ClientError({"Error": {"Code": code, "Message": message}}, "DescribeInstanceStatus")

        def refuse(refusal: ClientError = refusal, **_: Any) -> Any:
            raise refusal

        monkeypatch.setattr(here.client("ec2"), "describe_instance_status", refuse)
        assert set(states(nodes).values()) == {"unknown"} and nodes.not_told is refusal
    monkeypatch.undo()
    assert set(states(nodes).values()) == {"running"} and nodes.not_told is None
