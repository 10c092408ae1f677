"""A world whose machines and control planes are fakes of the other parts' interfaces; all else is the real one."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from infra.rehearsal.aws.strict.settings import SOFT, Strictness
from infra.rehearsal.aws.world import ServiceAccount, Which, World
from infra.spec.names import Names
from tests.serving import serving
from tests.waiting import until

numbers = itertools.count(1000)


class FakeMachine:
    """Joins its cluster as soon as it runs, unless `joins` was off when it started."""

    joins = True

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.pid, self.started = settings, next(numbers), time.monotonic()
        self.running = True
        self.joined = FakeMachine.joins and "-of-yesterday" not in settings["user_data"]
        if not self.joined:
            console = Path(settings["work"]) / "logs" / "console.log"
            console.parent.mkdir(parents=True, exist_ok=True)
            console.write_text("nodeadm: run\nkubelet: cannot join the cluster: Unauthorized\n")

    @property
    def provider_id(self) -> str:
        return f"aws:///{self.settings['zone']}/{self.settings['instance_id']}"

    def alive(self) -> bool:
        return self.running

    def kill(self) -> None:
        self.running = False

    def kill_rank(self) -> None: ...

    def signal(self, process: str, selection: Which, number: signal.Signals) -> int:
        return 0

    def harm(self, kind: str, fields: Mapping[str, str]) -> int:
        return 0

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def link(self, up: bool) -> None: ...

    def run(self, script: str, timeout_s: float, env: dict[str, str] | None = None) -> Any: ...


@dataclass
class FakeControlPlane:
    settings: dict[str, Any]
    ca_pem: str = "-----BEGIN CERTIFICATE-----"
    endpoint: str = "https://10.77.0.10:6443"
    admin_kubeconfig: Path = Path("/nonexistent")
    stopped: bool = False
    deleted_nodes: list[str] = field(default_factory=list)

    def client(self) -> Any: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def restart_etcd(self) -> None: ...

    def signal(self, component: str, number: signal.Signals) -> None: ...
    def refuse_scrapes(self, is_refused: bool) -> None: ...
    def tell(self, node: str, words: bytes) -> None: ...

    def stop(self) -> None:
        self.stopped = True

    def delete_node(self, provider_id: str) -> None:
        self.deleted_nodes.append(provider_id)


@dataclass
class AccountSite:
    world: World
    machines: list[FakeMachine]
    planes: list[FakeControlPlane]
    session: boto3.Session

    def client(self, service: str, session: boto3.Session | None = None) -> Any:
        config = Config(signature_version="s3v4", retries={"max_attempts": 1}) if service == "s3" else None
        return (session or self.session).client(service, endpoint_url=self.world.endpoint_url, config=config)

    def alive(self) -> list[FakeMachine]:
        return [machine for machine in self.machines if machine.alive()]


@contextmanager
def fake_site(folder: Path, strictness: Strictness = SOFT) -> Iterator[AccountSite]:
    """Soft unless a test says otherwise: most of these ask for something right after they made it."""
    machines: list[FakeMachine] = []
    planes: list[FakeControlPlane] = []

    def machine(settings: dict[str, Any]) -> FakeMachine:
        machines.append(FakeMachine(settings))
        return machines[-1]

    def plane(settings: dict[str, Any]) -> FakeControlPlane:
        planes.append(FakeControlPlane(settings))
        return planes[-1]

    def owner(plane: Any, token: str, audience: str) -> ServiceAccount | None:
        namespace, name, _ = token.split(".")
        return ServiceAccount(namespace, name, "pod-0") if name else None

    world = World(
        work=folder,
        tools=folder,
        endpoint_url="",
        strictness=strictness,
        machine_factory=machine,
        control_plane_factory=plane,
        ready_nodes=lambda _: {machine.provider_id for machine in machines if machine.alive() and machine.joined},
        token_owner=owner,
        join_within_s=60.0,
        replace_impaired_after_s=0.5,
    )
    with serving(world):
        yield AccountSite(world, machines, planes, boto3.Session(*world.operator_key, region_name=world.region))


def resize(eks: Any, **request: Any) -> None:
    """UpdateNodegroupConfig as one who waits until the change before it is done: until then EKS takes no other."""
    group = {name: request[name] for name in ("clusterName", "nodegroupName")}
    until(lambda: eks.describe_nodegroup(**group)["nodegroup"]["status"] != "UPDATING")
    eks.update_nodegroup_config(**request)


def pitch_gang(site: AccountSite, names: Names, bits: int = 24) -> None:
    """A cluster and its GPU node group of two, as far as a steward needs them; `bits`: of the subnets' prefix, 24
    at most."""
    ec2, eks, iam = site.client("ec2"), site.client("eks"), site.client("iam")
    vpc = ec2.create_vpc(CidrBlock="10.42.0.0/16")["Vpc"]["VpcId"]
    blocks = {"us-east-1a": f"10.42.0.0/{bits}", "us-east-1b": f"10.42.{1 << (24 - bits)}.0/{bits}"}
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone)["Subnet"]["SubnetId"]
        for zone, block in blocks.items()
    ]
    roles = {}
    for name, service, policy in (
        ("cluster", "eks", "AmazonEKSClusterPolicy"),
        ("node", "ec2", "AmazonEKSWorkerNodePolicy"),
    ):
        statement = {
            "Effect": "Allow",
            "Principal": {"Service": f"{service}.amazonaws.com"},
            "Action": ["sts:AssumeRole", "sts:TagSession"],
        }
        trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        role = iam.create_role(RoleName=f"{names.campaign}-{name}", AssumeRolePolicyDocument=trust)["Role"]
        iam.attach_role_policy(RoleName=role["RoleName"], PolicyArn=f"arn:aws:iam::aws:policy/{policy}")
        roles[name] = role["Arn"]
    eks.create_cluster(
        name=names.cluster,
        version="1.36",
        roleArn=roles["cluster"],
        resourcesVpcConfig={"subnetIds": subnets},
        accessConfig={"authenticationMode": "API"},
    )
    eks.get_waiter("cluster_active").wait(name=names.cluster, WaiterConfig={"Delay": 0, "MaxAttempts": 200})
    eks.create_nodegroup(
        clusterName=names.cluster,
        nodegroupName=names.gpu_group,
        nodeRole=roles["node"],
        subnets=subnets[:1],
        scalingConfig={"minSize": 0, "maxSize": 4, "desiredSize": 2},
    )
