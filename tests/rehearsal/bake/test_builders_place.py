"""A builder in an existing private subnet: what keeps it from its work is said before it is started."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra.aws.account import Account
from infra.aws.asked import seen_builders
from infra.bake import builder
from infra.errors import UserError
from infra.plan.checks.builders import drafts
from infra.rehearsal.aws.world import World
from infra.session.context import turns
from infra.spec.campaign import Spec
from infra.spec.names import Names
from tests.example import DEADLINE, example_spec
from tests.rehearsal.aws_account import Account as Client
from tests.rehearsal.aws_account import LocalMachine, until
from tests.rehearsal.existing_network import Existing, build

EKS = {"nodes": "eks"}
"""No node image is baked: nothing but AWS is needed."""


@pytest.fixture(scope="module")
def nat(aws: Client) -> Existing:
    return build(aws.ec2)


@pytest.fixture(scope="module")
def closed(aws: Client) -> Existing:
    return build(aws.ec2, nat=False, cidr="10.8")


@pytest.fixture(scope="module", autouse=True)
def profile(world: World, aws: Client) -> None:
    """The builders' role, whose agent may register, and machines without namespaces."""
    world.machine_factory = lambda settings: LocalMachine()
    trust = (
        '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},'
        '"Action":"sts:AssumeRole"}]}'
    )
    aws.iam.create_role(RoleName="builders", AssumeRolePolicyDocument=trust)
    aws.iam.attach_role_policy(RoleName="builders", PolicyArn="arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore")
    aws.iam.create_instance_profile(InstanceProfileName="builders")
    aws.iam.add_role_to_instance_profile(InstanceProfileName="builders", RoleName="builders")


def group_of(aws: Client, vpc: str, name: str) -> str:
    """A security group as EC2 makes it: nothing in, everything out."""
    return str(aws.ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"])


def spec_of(subnet: str, group: str, **image: Any) -> Spec:
    given = {"builders": {"subnet_id": subnet, "security_group_id": group}}
    return example_spec(image={"base": "bivouac/base:host", **given, **image})


def told(here: Account, spec: Spec) -> dict[str, str]:
    """Level and message -> what was seen."""
    seen = seen_builders(here, spec)
    assert seen is not None
    return {f"{draft.level}: {draft.message}": draft.seen for draft in drafts(spec, seen)}


def online(world: World, here: Account, aws: Client, spec: Spec) -> tuple[bool, dict[str, Any]]:
    """Whether Systems Manager hears of a builder of this spec, and the builder as EC2 describes it."""
    where: Any = SimpleNamespace(build_network_instance_profile="builders")
    context: Any = SimpleNamespace(
        spec=spec, account=here, names=Names(spec), deadline=DEADLINE, identity="abc", progress=None, turns=turns
    )
    image = next(ami for ami in world.backend("ec2").amis if ami.startswith("ami-"))
    made = builder._launch(context, where, image, datetime.now(UTC) + timedelta(hours=1))
    until(lambda: made in world.machines)
    listed = aws.ssm.describe_instance_information(Filters=[{"Key": "InstanceIds", "Values": [made]}])
    (instance,) = aws.ec2.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"]
    return bool(listed["InstanceInformationList"]), instance


def test_a_builder_behind_a_nat_gateway_has_no_public_address_and_is_heard_of(
    world: World, here: Account, aws: Client, nat: Existing
) -> None:
    spec = spec_of(nat.control_plane[0], group_of(aws, nat.vpc, "nat"))
    assert told(here, spec) == {}
    heard, instance = online(world, here, aws, spec)
    assert heard and "PublicIpAddress" not in instance
    assert instance["SubnetId"] == nat.control_plane[0]


def test_endpoints_are_enough_where_no_node_image_is_baked_and_each_that_lacks_is_named(
    world: World, here: Account, aws: Client, closed: Existing
) -> None:
    group = group_of(aws, closed.vpc, "closed")
    spec = spec_of(closed.gpu, group, **EKS)
    assert told(here, spec) == {} and online(world, here, aws, spec)[0]
    (seen,) = told(here, spec_of(closed.gpu, group)).values()
    assert "no default route; it lacks the internet, where EFA's and NVIDIA's packages" in seen

    aws.ec2.delete_vpc_endpoints(VpcEndpointIds=[closed.parts["ssmmessages"]])
    (seen,) = told(here, spec).values()
    assert seen.endswith("it lacks an endpoint of ssmmessages with private DNS")
    assert not online(world, here, aws, spec)[0], "and so the emulated AWS does not hear of it either"


def test_a_subnet_without_any_way_out_is_refused_before_a_builder_is_launched(
    world: World, here: Account, aws: Client, network: SimpleNamespace
) -> None:
    """An internet gateway is no way: the builder has no public address."""
    vpc = aws.ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
    subnet = aws.ec2.create_subnet(VpcId=vpc, CidrBlock="10.7.1.0/24")["Subnet"]["SubnetId"]
    (table,) = aws.ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    spec = spec_of(subnet, group_of(aws, vpc, "alone"), **EKS)
    wanted = [*(f"an endpoint of {one} with private DNS" for one in ("ssm", "ssmmessages", "ecr.api")),
              "an endpoint of S3 on its route table"]  # fmt: skip
    what = "error: a builder there has no way to what it needs"
    assert told(here, spec) == {what: f"{subnet}, no default route; it lacks {'; '.join(wanted)}"}
    with pytest.raises(UserError, match=r"no builder can work where .* image\.builders\.subnet_id: .*ssmmessages"):
        builder.refuse_place(here, spec)
    assert not online(world, here, aws, spec)[0]

    gateway = aws.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    aws.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    route = {"RouteTableId": table["RouteTableId"], "DestinationCidrBlock": "0.0.0.0/0"}
    aws.ec2.create_route(**route, GatewayId=gateway)
    (seen,) = told(here, spec).values()
    assert seen.startswith(f"{subnet}, {gateway}; it lacks") and not online(world, here, aws, spec)[0]


def test_a_security_group_elsewhere_or_without_egress_is_refused_and_an_open_one_told(
    here: Account, aws: Client, nat: Existing, closed: Existing
) -> None:
    subnet, everywhere = nat.gpu, [{"CidrIp": "0.0.0.0/0"}]
    foreign = told(here, spec_of(subnet, group_of(aws, closed.vpc, "foreign")))
    assert list(foreign) == ["error: the subnet's VPC has no such security group"]

    shut = group_of(aws, nat.vpc, "shut")
    aws.ec2.revoke_security_group_egress(GroupId=shut, IpPermissions=[{"IpProtocol": "-1", "IpRanges": everywhere}])
    assert list(told(here, spec_of(subnet, shut))) == ["error: does not let the builder out"]
    narrow = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}
    aws.ec2.authorize_security_group_egress(GroupId=shut, IpPermissions=[narrow])
    assert told(here, spec_of(subnet, shut)) == {
        "warning: lets the builder out to some places only": f"{shut}: TCP 443 to 10.0.0.0/8"
    }

    ssh = group_of(aws, nat.vpc, "ssh")
    let = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": everywhere}
    aws.ec2.authorize_security_group_ingress(GroupId=ssh, IpPermissions=[let])
    assert told(here, spec_of(subnet, ssh)) == {
        "warning: lets others in to the builder, who needs nobody": f"{ssh}: 0.0.0.0/0"
    }


def test_a_subnet_that_is_not_there_is_refused(here: Account) -> None:
    spec = spec_of("subnet-0123456789abcdef0", "sg-0123456789abcdef0")
    assert list(told(here, spec)) == ["error: account and region have no such subnet"]
