"""An emulated AWS inside the test's process, and what the tests of its services share."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from infra.aws.account import Account as Own
from infra.rehearsal.aws.strict.settings import SOFT
from infra.rehearsal.aws.world import Which, World
from tests.serving import serving
from tests.waiting import until as until


def code_of(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["Error"]["Code"]


class Account:
    """Clients of one principal."""

    def __init__(self, world: World, key: str, secret: str) -> None:
        self.world, self.session = world, boto3.Session(key, secret, region_name=world.region)

    def __getattr__(self, service: str) -> Any:
        client = self.session.client(service.replace("_", "-"), endpoint_url=self.world.endpoint_url)
        setattr(self, service, client)
        return client


@contextmanager
def emulated(site: Path, **settings: Any) -> Iterator[World]:
    """`settings`: the world's; without any it is as strict as a site is."""
    world = World(work=site, tools=Path(), endpoint_url="", **settings)
    with serving(world):
        yield world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with emulated(tmp_path_factory.mktemp("site"), strictness=SOFT) as made:
        yield made


def signed_in(patch: pytest.MonkeyPatch, world: World, key: tuple[str, str] | None = None) -> Own:
    """The product's own account in this world, from the environment as a person sets it; `key`: the operator's."""
    access, secret = key or world.operator_key
    for name, value in (("ENDPOINT_URL", world.endpoint_url), ("ACCESS_KEY_ID", access), ("SECRET_ACCESS_KEY", secret)):
        patch.setenv(f"AWS_{name}", value)
    return Own(world.region)


@pytest.fixture(scope="module")
def here(world: World) -> Iterator[Own]:
    """Signed in as the operator, for a whole module."""
    with pytest.MonkeyPatch.context() as patch:
        yield signed_in(patch, world)


def make_user(world: World, name: str, *statements: dict[str, Any]) -> tuple[str, str]:
    iam = world.backend("iam")
    iam.create_user("us-east-1", name)
    iam.put_user_policy(name, "own", json.dumps({"Version": "2012-10-17", "Statement": list(statements)}))
    key = iam.create_access_key(name)
    return key.access_key_id, key.secret_access_key


@pytest.fixture(scope="module")
def aws(world: World) -> Account:
    return Account(world, *world.operator_key)


@pytest.fixture(scope="module")
def network(aws: Account) -> SimpleNamespace:
    vpc = aws.ec2.create_vpc(CidrBlock="10.42.0.0/16")["Vpc"]["VpcId"]
    subnet = aws.ec2.create_subnet(VpcId=vpc, CidrBlock="10.42.1.0/24", AvailabilityZone="us-east-1a")["Subnet"]
    group = aws.ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    aws.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    return SimpleNamespace(vpc=vpc, subnet=subnet["SubnetId"], group=group)


def make_role(aws: Account, name: str, service: str, *statements: dict[str, Any]) -> str:
    principal = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [principal]})
    arn = aws.iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    document = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    aws.iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=document)
    return arn


class LocalMachine:
    """Runs scripts as a machine would, without the machine."""

    pid = 0

    def __init__(self) -> None:
        self.up = True

    def alive(self) -> bool:
        return self.up

    def kill(self) -> None:
        self.up = False

    def kill_rank(self) -> None:
        raise NotImplementedError

    def signal(self, process: str, selection: Which, number: signal.Signals) -> int:
        raise NotImplementedError

    def harm(self, kind: str, fields: Mapping[str, str]) -> int:
        raise NotImplementedError

    def freeze(self) -> None:
        raise NotImplementedError

    def thaw(self) -> None:
        raise NotImplementedError

    def link(self, up: bool) -> None:
        raise NotImplementedError

    def run(self, script: str, timeout_s: float, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=timeout_s, env=env)


def launch(world: World, **request: Any) -> str:
    ec2 = Account(world, *world.operator_key).ec2
    image = next(image for image in world.backend("ec2").amis if image.startswith("ami-"))
    started = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType="m5.large", **request)
    instance_id = started["Instances"][0]["InstanceId"]
    world.machines[instance_id] = LocalMachine()
    return instance_id


def state_of(aws: Account, instance_id: str) -> str:
    described = aws.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
    return described["State"]["Name"]


def pitch_lustre(aws: Account, network: SimpleNamespace, **changes: Any) -> dict[str, Any]:
    lustre = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125}
    request = {
        "FileSystemType": "LUSTRE",
        "StorageCapacity": 1200,
        "SubnetIds": [network.subnet],
        "SecurityGroupIds": [network.group],
        "LustreConfiguration": lustre,
        "Tags": [{"Key": "bivouac:campaign", "Value": "k2"}],
    }
    return aws.fsx.create_file_system(**(request | changes))["FileSystem"]
