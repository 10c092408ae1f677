"""An emulated AWS with the foundation's build network, in private namespaces, and drivers that bake there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
import yaml
from rich.console import Console

from infra.aws.account import Account
from infra.bake import builder
from infra.console.progress import Progress
from infra.record.store import CampaignStore
from infra.rehearsal.aws import server
from infra.rehearsal.aws.strict.settings import SOFT
from infra.rehearsal.aws.world import World
from infra.rehearsal.site import network
from infra.session.context import Context
from infra.spec.campaign import Spec
from infra.spec.names import BUILD_NETWORK, REPOSITORY, STEWARD_REPOSITORY, buckets, builder_guard_role
from infra.stack.access import building, policies
from infra.stack.outputs import FoundationOutputs
from tests.root import ROOT
from tests.serving import serve
from tests.waiting import until as eventually

AWS = "10.77.0.2"
SPEC = Spec.model_validate(yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text()))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    network.add_addresses("lo", ())
    network.make_bridge("camp0", ["10.77.0.1/16", f"{AWS}/16"])
    work = tmp_path_factory.mktemp("site")
    made = World(work=work, tools=work, endpoint_url=f"http://{AWS}:5000", strictness=SOFT)
    http = server.make(made, AWS, 5000)
    made.start()
    serve(http)
    key, secret = made.operator_key
    os.environ |= {
        "AWS_ENDPOINT_URL": made.endpoint_url,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": made.region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    yield made
    made.stop()
    http.shutdown()


@pytest.fixture(scope="module")
def account(world: World) -> Account:
    return Account(world.region)


@pytest.fixture(scope="module")
def build_network(world: World, account: Account) -> FoundationOutputs:
    """The foundation's build network, with the roles' own policies: the emulated AWS enforces them."""
    ec2, iam = account.client("ec2"), account.client("iam")
    place = policies.AccountPlace(world.account, world.region)
    vpc = ec2.create_vpc(CidrBlock="10.77.64.0/24")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.77.64.0/24")["Subnet"]["SubnetId"]
    ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    (table,) = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    ec2.create_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    group = ec2.create_security_group(GroupName=BUILD_NETWORK, Description="builder", VpcId=vpc)["GroupId"]
    arns = {}
    for name, service, statements in (
        (BUILD_NETWORK, "ec2.amazonaws.com", building.builder(place)),
        (builder_guard_role(place.region), "scheduler.amazonaws.com", building.builder_guard(place)),
    ):
        made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=policies.trust(service, place))
        iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=policies.document(statements))
        arns[name] = made["Role"]["Arn"]
    iam.attach_role_policy(RoleName=BUILD_NETWORK, PolicyArn="arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore")
    iam.create_instance_profile(InstanceProfileName=BUILD_NETWORK)
    iam.add_role_to_instance_profile(InstanceProfileName=BUILD_NETWORK, RoleName=BUILD_NETWORK)
    account.client("s3").create_bucket(Bucket=buckets(world.account, world.region).state)
    for repository in (REPOSITORY, STEWARD_REPOSITORY):
        account.client("ecr").create_repository(repositoryName=repository)
    return FoundationOutputs(
        state_bucket=buckets(world.account, world.region).state,
        archive_bucket="-",
        repository_url="-",
        build_network_subnet_id=subnet,
        build_network_security_group_id=group,
        build_network_instance_profile=BUILD_NETWORK,
        build_network_guard_arn=arns[builder_guard_role(place.region)],
    )


@contextmanager
def campaign(world: World, name: str) -> Iterator[Context]:
    """A driver of a campaign of this name; what it says is in `progress.console.file`."""
    account = Account(world.region)
    where = buckets(SPEC.account, SPEC.region)
    store = CampaignStore(account.client("s3"), where.state, name, "driver-test")
    lease = store.lease("driver", timedelta(seconds=30))
    lease.acquire()
    try:
        yield Context(
            spec=SPEC.model_copy(update={"campaign": name}),
            plan=None,  # type: ignore[arg-type]
            account=account,
            operator_arn="-",
            buckets=where,
            store=store,
            lease=lease,
            progress=Progress(Console(file=StringIO(), width=240)),
            results=world.work / "results",
            deadline=datetime.now(UTC) + timedelta(hours=4),
        )
    finally:
        lease.release()


def run_builder(
    context: Context, place: FoundationOutputs, image: str, schedule: str | None = None, life: timedelta = builder.LIFE
) -> AbstractContextManager[builder.Builder]:
    """Run a builder, by default as the node image's."""
    return builder.builder(context, place, image, schedule or context.names.builder_schedules[0], life)


def said(context: Context) -> str:
    return str(context.progress.console.file.getvalue())  # type: ignore[attr-defined]


def nothing_is_left(context: Context) -> bool:
    """No builder, no schedule, no file on its way to one."""
    account, names = context.account, context.names

    def gone() -> bool:
        schedules = [schedule["Name"] for schedule in account.client("scheduler").list_schedules()["Schedules"]]
        return not builder.living_builders(account, names) and not {*names.builder_schedules} & {*schedules}

    eventually(gone)
    return not context.store.keys("bake/")
