"""What AWS alone knows of a spec: zones, quota, base image of the emulated account, before anything is made."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from rich.console import Console

from infra.aws.account import Account
from infra.aws.market import look
from infra.aws.quota_room import quota_use
from infra.bake.foundation import campaign_settings
from infra.cli.prepare.check import check_command
from infra.cli.run.run import run_command
from infra.plan.catalogue import instance_type
from infra.plan.facts import GivenFileSystem
from infra.record.store import CampaignStore
from infra.rehearsal.aws.ec2.quotas import OVERRIDES
from infra.session.session import STACK_CONFIG
from infra.spec.names import BUILD_NETWORK, PROJECT, buckets
from infra.stack.settings import CampaignSettings, read_settings
from tests.example import example_spec
from tests.rehearsal.aws_account import Account as Account_
from tests.rehearsal.aws_account import World, code_of

P_ON_DEMAND = "L-417A185B"


@pytest.fixture(scope="module", autouse=True)
def entered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        yield


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))

    def made(**changes: Any) -> Path:
        path = tmp_path / "spec.yaml"
        spec = example_spec(**{"training": {"global_batch": 256}, **changes})
        path.write_text(spec.model_dump_json(exclude_none=True))
        return path

    return made


def errors(path: Path, *, online: bool = True) -> dict[str, dict[str, Any]]:
    """Errors of `bivouac check`, by rule."""
    stream = io.StringIO()
    code = check_command(path, json=True, console=Console(file=stream), online=online)
    document = json.loads(stream.getvalue())
    findings = {finding["rule"]: finding for finding in document["findings"] if finding["level"] == "error"}
    assert code == (64 if findings else 0)
    return findings


@pytest.fixture
def quota(world: World) -> Iterator[Any]:
    path = world.work / "aws" / OVERRIDES
    path.parent.mkdir(exist_ok=True)
    yield lambda vcpus: path.write_text(json.dumps({P_ON_DEMAND: vcpus}))
    path.unlink()


NODES = {"count": 2, "instance_type": "p5.48xlarge"}


def test_check_tells_of_zones_quota_and_base_only_when_it_is_told_to_ask(
    here: Account, write: Any, quota: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    zones = RegionsAndZonesBackend.zones
    monkeypatch.setitem(zones, "us-east-1", [zone for zone in zones["us-east-1"] if zone.name != "us-east-1e"])
    quota(383)
    path = write(nodes=NODES, zone="us-east-1e", image={"base": "bivouac/base:cuda"})
    assert errors(path, online=False) == {}
    found = errors(path)
    assert set(found) == {
        "usable-zones", "zone-offers", "gpu-node-quota", "base-image"
    }  # fmt: skip
    assert found["gpu-node-quota"]["seen"] == "384 vCPUs wanted, 383 left"
    assert "us-east-1a" in found["usable-zones"]["cure"]
    assert "docker push" in found["base-image"]["cure"]
    quota(384)
    assert errors(write(nodes=NODES, image={"base": "bivouac/base:host"})) == {}


def test_a_run_is_refused_before_the_yes_and_before_anything_is_made(
    here: Account, write: Any, quota: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota(383)
    monkeypatch.setattr("infra.cli.run.run.ask_yes", lambda *_: pytest.fail("it asked for money"))
    before = here.client("s3").list_buckets()["Buckets"]
    stream = io.StringIO()
    assert run_command(write(nodes=NODES, image={"base": "bivouac/base:cuda"}), False, Console(file=stream)) == 64
    assert "quota of P instances is too small" in stream.getvalue() and "docker push" in stream.getvalue()
    assert here.client("s3").list_buckets()["Buckets"] == before


def test_places_of_a_reservation_are_held_against_no_quota_a_second_time(
    here: Account, world: World, write: Any, quota: Any
) -> None:
    quota(400)
    item = instance_type("p5.48xlarge")
    free = quota_use(here, item, spot=False)
    ec2 = Account_(world, *world.operator_key).ec2
    made = ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=2
    )["CapacityReservation"]["CapacityReservationId"]
    try:
        used = quota_use(here, item, spot=False)
        assert free is not None and used is not None and (free.free, used.free) == (400, 16)
        assert "gpu-node-quota" in errors(write(nodes=NODES, image={"base": "bivouac/base:host"}))
        held = {**NODES, "capacity": "reservation", "reservation_id": made}
        assert errors(write(nodes=held, image={"base": "bivouac/base:host"})) == {}
    finally:
        ec2.cancel_capacity_reservation(CapacityReservationId=made)


def test_a_question_that_is_denied_is_told_and_stops_nothing(
    here: Account, world: World, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def site(**asked: Any) -> dict[str, Any]:
        with urlopen(f"{world.endpoint_url}/_site/faults", data=json.dumps(asked).encode()) as answer:
            return dict(json.loads(answer.read()))

    rule = {"service": "servicequotas", "action": "*", "code": "AccessDenied", "status": 403, "times": None}
    (added,) = site(add=[rule])["added"]
    try:
        assert errors(write(nodes=NODES, image={"base": "bivouac/base:host"})) == {}
    finally:
        site(clear=[added])
    assert "AWS did not answer GetServiceQuota: AccessDenied" in capsys.readouterr().err


def test_offers_say_where_the_control_plane_of_a_zone_would_stand(here: Account) -> None:
    spec = example_spec(nodes=NODES, training={"global_batch": 256})
    market = look(here, spec, ["p5.48xlarge"], timedelta(hours=2), lambda text: None)
    notes = {choice.zone: choice.note for choice in market.choices if choice.capacity == "on-demand"}
    assert not market.unanswered and "us-east-1a" in notes and not notes["us-east-1a"]
    for zone, note in notes.items():
        assert ("EKS places none" in note) == (zone == "us-east-1e"), "which is use1-az3"


def test_eks_of_the_emulation_refuses_a_control_plane_where_eks_does(world: World) -> None:
    aws = Account_(world, *world.operator_key)
    vpc = aws.ec2.create_vpc(CidrBlock="10.77.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        aws.ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.77.{n}.0/24", AvailabilityZone=f"us-east-1{letter}")["Subnet"][
            "SubnetId"
        ]
        for n, letter in enumerate("ae")
    ]
    trust = {"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "eks.amazonaws.com"}, "Action": "sts:AssumeRole"}]}  # fmt: skip
    role = aws.iam.create_role(RoleName="cluster-of-e", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    given = {"name": "in-e", "roleArn": role, "resourcesVpcConfig": {"subnetIds": subnets}}
    assert code_of(lambda: aws.eks.create_cluster(**given)) == "UnsupportedAvailabilityZoneException"


def test_zones_of_a_stack_never_move_whatever_the_account_has_later(here: Account) -> None:
    where = buckets("123456789012", "us-east-1").state
    here.client("s3").create_bucket(Bucket=where)
    spec = example_spec(zone="us-east-1d")
    context: Any = SimpleNamespace(
        spec=spec, account=here, operator_arn="arn:aws:iam::123456789012:user/someone",
        deadline=datetime(2026, 12, 1, tzinfo=UTC), store=CampaignStore(here.client("s3"), where, "zoned", "test"),
        identity="20261122T101500Z-0a1b2c3d",
    )  # fmt: skip
    first = campaign_settings(context, "a" * 12)
    assert first.control_plane_zones == ("us-east-1d", "us-east-1f"), "e is use1-az3, where EKS takes none"
    config = first.to_config()
    read = read_settings(lambda key: config.get(f"{PROJECT}:{key}"))
    assert isinstance(read, CampaignSettings) and read.control_plane_zones == first.control_plane_zones
    context.store.put_json(STACK_CONFIG, {**config, f"{PROJECT}:controlPlaneZones": "us-east-1d,us-east-1a"})
    assert campaign_settings(context, "a" * 12).control_plane_zones == ("us-east-1d", "us-east-1a")
    context.store.put_json(STACK_CONFIG, {key: config[key] for key in config if "Zones" not in key})
    assert campaign_settings(context, "a" * 12).control_plane_zones is None, "made before zones were chosen so"


def test_what_is_recorded_of_a_file_system_that_exists_outlives_it(here: Account, monkeypatch: Any) -> None:
    """A teardown writes the same settings after somebody has deleted what the job mounted."""
    where, id = buckets("123456789012", "us-east-1").state, "fs-0123456789abcdef0"
    here.client("s3").create_bucket(Bucket=where)
    job = {"script": "/t.py", "checkpoints": {"format": "marker"}, "mounts": {"team": {"fsx": id}},
           "estimates": {"steps": 9, "step_seconds": 1}}  # fmt: skip
    context: Any = SimpleNamespace(
        spec=example_spec(training=None, data=None, workload=job), account=here,
        operator_arn="arn:aws:iam::123456789012:user/someone", deadline=datetime(2026, 12, 1, tzinfo=UTC),
        store=CampaignStore(here.client("s3"), where, "mounting", "test"), identity="20261122T101500Z-0a1b2c3d",
    )  # fmt: skip
    system = GivenFileSystem(
        id=id, kind="LUSTRE", lifecycle="AVAILABLE", vpc_id="vpc-1", mount_name="abcd", groups=("sg-1", "sg-2"),
        admits=(),
    )  # fmt: skip
    monkeypatch.setattr("infra.bake.foundation.given_file_systems", lambda *_: (system,))
    first = campaign_settings(context, "a" * 12)
    assert (first.mount_names, first.mount_groups) == ((f"{id}=abcd",), ("sg-1", "sg-2"))
    context.store.put_json(STACK_CONFIG, first.to_config())
    monkeypatch.setattr("infra.bake.foundation.given_file_systems", lambda *_: ())
    again = campaign_settings(context, "a" * 12)
    assert (again.mount_names, again.mount_groups) == (first.mount_names, first.mount_groups)


@pytest.fixture
def quotas(world: World) -> Iterator[Any]:
    """Values by quota code; the others are a new account's."""
    path = world.work / "aws" / OVERRIDES
    path.parent.mkdir(exist_ok=True)
    yield lambda values: path.write_text(json.dumps({P_ON_DEMAND: 1536, **values}))
    path.unlink()


SHORT = {
    "L-F678F1CE": ("network", "VPCs per Region"),
    "L-A4707A72": ("network.egress", "Internet gateways per Region"),
    "L-0263D0A3": ("network.egress", "EC2-VPC Elastic IPs"),
    "L-FE5A380F": ("zone", "NAT gateways per Availability Zone"),
    "L-1194D53C": ("campaign", "Clusters"),
    "L-FD6F2F22": ("storage.shared.deployment", "Lustre Persistent_2 file systems"),
    "L-8F1B9C74": ("storage.shared.capacity_gib", "Lustre Persistent_2 storage capacity (GiB)"),
}


def findings_on_quotas(path: Path) -> dict[str, dict[str, Any]]:
    """By field and code."""
    stream = io.StringIO()
    check_command(path, json=True, console=Console(file=stream), online=True)
    findings = [finding for finding in json.loads(stream.getvalue())["findings"] if finding["rule"] == "service-quotas"]
    return {one["cure"].partition("(")[2].partition(")")[0].split()[1]: one for one in findings}


def test_every_quota_that_is_full_is_a_finding_with_its_numbers_and_its_code(
    here: Account, write: Any, quotas: Any
) -> None:
    path = write(nodes=NODES, image={"base": "bivouac/base:host"})
    quotas({})
    assert findings_on_quotas(path) == {}
    quotas(dict.fromkeys(SHORT, 0))
    found = findings_on_quotas(path)
    assert {code: (one["field"], one["level"]) for code, one in found.items()} == {
        code: (field, "error") for code, (field, _) in SHORT.items()
    }
    assert all(name in found[code]["message"] for code, (_, name) in SHORT.items())
    assert found["L-8F1B9C74"]["seen"] == "1200 wanted, 0 of 0 in use"
    assert "ask for 1200 in Service Quotas (fsx L-8F1B9C74)" in found["L-8F1B9C74"]["cure"]


def test_what_the_account_uses_is_counted_with_what_is_to_come(
    here: Account, write: Any, quotas: Any, world: World
) -> None:
    ec2 = Account_(world, *world.operator_key).ec2
    path = write(nodes=NODES, image={"base": "bivouac/base:host"})
    there = len(ec2.describe_vpcs()["Vpcs"])
    quotas({"L-F678F1CE": there + 1, "L-0263D0A3": 1})
    assert findings_on_quotas(path)["L-F678F1CE"]["seen"] == f"2 wanted, {there} of {there + 1} in use", (
        "a build network too"
    )
    allocated = ec2.allocate_address(Domain="vpc")["AllocationId"]
    assert findings_on_quotas(path)["L-0263D0A3"]["seen"] == "1 wanted, 1 of 1 in use"
    ec2.release_address(AllocationId=allocated)
    assert "L-0263D0A3" not in findings_on_quotas(path)
    tags = [{"ResourceType": "vpc", "Tags": [{"Key": "Name", "Value": BUILD_NETWORK}]}]
    vpc = ec2.create_vpc(CidrBlock="10.99.0.0/16", TagSpecifications=tags)["Vpc"]["VpcId"]
    quotas({"L-F678F1CE": there + 2})
    assert "L-F678F1CE" not in findings_on_quotas(path), "the build network is there"
    ec2.delete_vpc(VpcId=vpc)
