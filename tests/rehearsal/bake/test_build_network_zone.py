"""Builders stand in a zone that sells their type, and a build network that already does so never moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws
import pytest

from infra.aws.account import Account
from infra.bake.foundation import foundation_settings, remember, with_zone
from infra.errors import UserError
from infra.record.store import CampaignStore
from infra.rehearsal.aws.world import World
from infra.spec.names import BUILD_NETWORK, BUILDER_TYPE, buckets
from infra.stack.access.policies import AccountPlace
from infra.stack.network.build_network import BuildNetwork
from infra.stack.settings import FoundationSettings
from tests.example import example_spec
from tests.rehearsal.aws_account import Account as Client
from tests.rehearsal.aws_account import code_of
from tests.worlds.pulumi_project import Program, PulumiProject, counts

REFUSED = "Your requested instance type is not supported in your requested Availability Zone."


@pytest.fixture
def unsold(world: World) -> Iterator[Any]:
    """Zones by their letters that sell no builder from now on."""

    def refuse(letters: str) -> None:
        rules = [
            {"instance_type": "m7i.*", "zone": f"us-east-1{letter}", "code": "Unsupported", "message": REFUSED}
            for letter in letters
        ]
        world.routes["/_site/capacity"]("", json.dumps({"clear": True, "add": rules}).encode())

    yield refuse
    refuse("")


def build_network(zone: str | None) -> Program:
    def program() -> None:
        provider = pulumi_aws.Provider("aws", region="us-east-1")
        boundary = "arn:aws:iam::123456789012:policy/bivouac-boundary"
        made = BuildNetwork(
            AccountPlace("123456789012", "us-east-1"), boundary, zone, pulumi.ResourceOptions(provider=provider)
        )
        assert made.subnet is not None
        pulumi.export("subnet", made.subnet.id)
        pulumi.export("zone", made.subnet.availability_zone)

    return program


@pytest.mark.nightly
def test_a_build_network_is_made_where_builders_are_sold_and_moves_from_elsewhere_only(
    world: World, here: Account, aws: Client, unsold: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = buckets(world.account, world.region).state
    here.client("s3").create_bucket(Bucket=where)
    store = CampaignStore(here.client("s3"), where, "zoned", "test")
    spec = example_spec()
    key, secret = world.operator_key
    access = {"AWS_ENDPOINT_URL": world.endpoint_url, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    stacks = PulumiProject(tmp_path, access, monkeypatch)

    old = stacks.stack(build_network(foundation_settings(store, spec).build_network_zone)).up()
    first = old.outputs["zone"].value
    for letter in "abcdf":  # never sold in us-east-1e
        unsold("".join(one for one in "abcdef" if one != letter))
        settled = with_zone(here, foundation_settings(store, spec))
        assert settled.build_network_zone == (None if first.endswith(letter) else f"us-east-1{letter}")

    unsold(first[-1])
    image = next(ami for ami in world.backend("ec2").amis if ami.startswith("ami-"))
    launch = {"ImageId": image, "MinCount": 1, "MaxCount": 1, "InstanceType": BUILDER_TYPE}
    assert code_of(lambda: aws.ec2.run_instances(**launch, SubnetId=old.outputs["subnet"].value)) == "Unsupported"
    moved = with_zone(here, foundation_settings(store, spec))
    remember(store, moved)
    assert moved.build_network_zone not in (None, first) and foundation_settings(store, spec) == moved
    new = stacks.stack(build_network(moved.build_network_zone)).up()
    assert new.outputs["zone"].value == moved.build_network_zone
    assert counts(new)["replace"] == 2, "the subnet and its table's association, nothing else"
    aws.ec2.run_instances(**launch, SubnetId=new.outputs["subnet"].value)

    unsold("")
    assert with_zone(here, foundation_settings(store, spec)) == moved, (
        "a build network that serves stays, whatever is sold"
    )
    again = stacks.stack(build_network(moved.build_network_zone)).up()
    assert set(counts(again)) == {"same"}
    described = aws.ec2.describe_subnets(Filters=[{"Name": "tag:Name", "Values": [BUILD_NETWORK]}])["Subnets"]
    assert [one["AvailabilityZone"] for one in described] == [moved.build_network_zone]


def test_a_new_build_network_takes_the_first_zone_that_sells_builders_or_is_refused(here: Account, unsold: Any) -> None:
    fresh = FoundationSettings(account="123456789012", region="us-east-1", build_network_zone="us-east-1b")
    unsold("ab")
    assert with_zone(here, fresh).build_network_zone == "us-east-1c", "us-east-1b sells none any more"
    unsold("abcdef")
    with pytest.raises(
        UserError, match=rf"no zone sells.*{BUILDER_TYPE}, among us-east-1a, us-east-1b.*another region"
    ):
        with_zone(here, fresh)
