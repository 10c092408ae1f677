"""A builder's root disk holds what a bake writes, and its image fits the nodes' disks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from infra.aws.account import Account
from infra.bake import builder
from infra.rehearsal.aws.world import World
from infra.session.context import turns
from infra.spec.names import Names
from infra.stack.cluster.nodes import ROOT_VOLUME_GIB
from tests.example import DEADLINE, example_spec
from tests.rehearsal.aws_account import Account as Client
from tests.rehearsal.aws_account import until

BRING_GIB = 20
"""Root disk of EKS's images, awslabs/amazon-eks-ami, templates/al2023/variables-default.json: `volume_size`."""


def test_a_builders_disk_is_larger_than_its_images_own_and_ends_with_it(
    world: World, here: Account, aws: Client, network: SimpleNamespace
) -> None:
    spec = example_spec()
    profile = aws.iam.create_instance_profile(InstanceProfileName="builders")["InstanceProfile"]
    where: Any = SimpleNamespace(
        build_network_subnet_id=network.subnet,
        build_network_security_group_id=network.group,
        build_network_instance_profile=profile["InstanceProfileName"],
    )
    context: Any = SimpleNamespace(
        spec=spec, account=here, names=Names(spec), deadline=DEADLINE, identity="abc", progress=None, turns=turns
    )
    image = next(ami for ami in world.backend("ec2").amis if ami.startswith("ami-"))
    instance = builder._launch(context, where, image, datetime.now(UTC) + timedelta(hours=1))
    by_builder = [{"Name": "attachment.instance-id", "Values": [instance]}]
    (disk,) = aws.ec2.describe_volumes(Filters=by_builder)["Volumes"]
    assert 2 * BRING_GIB <= disk["Size"] <= ROOT_VOLUME_GIB and disk["VolumeType"] == "gp3"
    aws.ec2.terminate_instances(InstanceIds=[instance])
    until(lambda: not aws.ec2.describe_volumes(Filters=by_builder)["Volumes"])
