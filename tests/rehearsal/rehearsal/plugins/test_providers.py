"""The provider plugins under the real Pulumi engine, against an emulated AWS on the loopback interface."""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pulumi
import pulumi_aws as aws
import pytest
from pulumi import automation

from infra.rehearsal.plugins.aws import table
from infra.rehearsal.plugins.aws.call import ResourceCall
from infra.rehearsal.plugins.aws.catalogue import RESOURCES
from infra.rehearsal.plugins.aws.client import Clients
from infra.rehearsal.plugins.aws.mapping import changes, overlay
from infra.rehearsal.plugins.aws.package import AwsPackage
from infra.rehearsal.plugins.aws.table import Conversion, Input
from infra.rehearsal.plugins.kubernetes import objects
from infra.rehearsal.plugins.package import OperationFailed, Request
from infra.rehearsal.plugins.wire import UNKNOWN, decode, encode, has_unknown
from tests.worlds.pulumi_project import Program, PulumiProject, counts

TRUST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole",
         "Principal": {"Service": "eks.amazonaws.com"}}]}  # fmt: skip
READ: dict[str, Any] = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": "*"}],
}


@pytest.fixture
def world(tmp_path: Path, moto_server: str, monkeypatch: pytest.MonkeyPatch) -> PulumiProject:
    return PulumiProject(tmp_path, {"AWS_ENDPOINT_URL": moto_server}, monkeypatch)


def small_stack(**settings: Any) -> Program:
    """VPC, subnet, security group with rules, role, bucket."""
    cidr, hostnames = settings.get("cidr", "10.1.1.0/24"), settings.get("hostnames")

    def program() -> None:
        provider = aws.Provider("aws", region="us-east-1", default_tags={"tags": {"campaign": "small"}})
        opts = pulumi.ResourceOptions(provider=provider)
        vpc = aws.ec2.Vpc("vpc", cidr_block="10.1.0.0/16", enable_dns_hostnames=hostnames, tags={"a": "b"}, opts=opts)
        subnet = aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block=cidr, availability_zone="us-east-1a", opts=opts)
        group = aws.ec2.SecurityGroup("nodes", vpc_id=vpc.id, description="nodes", opts=opts)
        aws.vpc.SecurityGroupIngressRule(
            "itself",
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            ip_protocol="-1",
            opts=opts,
        )
        aws.vpc.SecurityGroupEgressRule(
            "out", security_group_id=group.id, cidr_ipv4="0.0.0.0/0", ip_protocol="tcp", from_port=443, to_port=443,
            opts=opts,
        )  # fmt: skip
        role = aws.iam.Role("role", assume_role_policy=json.dumps(TRUST), opts=opts)
        aws.iam.RolePolicy("read", role=role.name, policy=json.dumps(READ), opts=opts)
        bucket = aws.s3.Bucket("bucket", force_destroy=True, opts=opts)
        aws.s3.BucketVersioning(
            "bucket", bucket=bucket.bucket, versioning_configuration={"status": "Enabled"}, opts=opts
        )
        for name, value in {"vpc": vpc.id, "subnet": subnet.id, "bucket": bucket.bucket, "role": role.name}.items():
            pulumi.export(name, value)
        pulumi.export("tags", vpc.tags_all)
        pulumi.export("group", group.id)

    return program


@pytest.mark.nightly
def test_a_stack_goes_up_stays_changes_is_replaced_heals_and_goes(world: PulumiProject) -> None:
    stack = world.stack(small_stack())
    assert stack.preview().change_summary == {"create": 11}
    ec2, s3, iam = (boto3.Session().client(service) for service in ("ec2", "s3", "iam"))
    before = len(ec2.describe_vpcs()["Vpcs"])

    first = stack.up()
    assert counts(first) == {"create": 11}
    out = {name: output.value for name, output in first.outputs.items()}
    assert len(ec2.describe_vpcs()["Vpcs"]) == before + 1
    assert out["tags"] == {"a": "b", "campaign": "small"}
    assert s3.get_bucket_versioning(Bucket=out["bucket"])["Status"] == "Enabled"
    rules = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [out["group"]]}])
    assert sorted(rule["IsEgress"] for rule in rules["SecurityGroupRules"]) == [False, True]

    assert counts(stack.up()) == {"same": 11}

    stack = world.stack(small_stack(hostnames=True, cidr="10.1.2.0/24"))
    moved = stack.up()
    assert counts(moved) == {"same": 9, "update": 1, "replace": 1}
    answer = ec2.describe_vpc_attribute(VpcId=out["vpc"], Attribute="enableDnsHostnames")
    assert answer["EnableDnsHostnames"]["Value"] is True
    assert moved.outputs["subnet"].value != out["subnet"]

    drifted = {**READ, "Statement": [{**READ["Statement"][0], "Effect": "Deny"}]}
    name = iam.list_role_policies(RoleName=out["role"])["PolicyNames"][0]
    iam.put_role_policy(RoleName=out["role"], PolicyName=name, PolicyDocument=json.dumps(drifted))
    ec2.delete_subnet(SubnetId=moved.outputs["subnet"].value)
    assert counts(stack.refresh()) == {"same": 9, "update": 1, "delete": 1}
    assert counts(stack.up()) == {"same": 9, "update": 1, "create": 1}
    assert counts(stack.refresh()) == {"same": 11}

    s3.put_object(Bucket=out["bucket"], Key="left", Body=b"behind")
    assert counts(stack.destroy()) == {"delete": 11}
    assert len(ec2.describe_vpcs()["Vpcs"]) == before
    assert out["bucket"] not in {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}


def wrong_stack() -> None:
    aws.ec2.Vpc("vpc", cidr_block="10.1.0.0/16", enable_network_address_usage_metrics=True)


def refusal(work: Path, moto_server: str) -> str:
    """What the engine says of `wrong_stack`."""
    with pytest.raises(automation.CommandError) as refused:
        PulumiProject(work, {"AWS_ENDPOINT_URL": moto_server}, pytest.MonkeyPatch()).stack(wrong_stack).preview()
    return str(refused.value)


@pytest.mark.nightly
def test_an_unknown_property_is_an_error_that_names_it(tmp_path: Path, moto_server: str) -> None:
    # In a process of its own: the SDK leaves the coroutine of a program that failed to the garbage collector, where
    # it raises, whatever runs then.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        text = process.submit(refusal, tmp_path, moto_server).result()
    assert "unknown property 'enableNetworkAddressUsageMetrics' of aws:ec2/vpc:Vpc" in text


def test_an_unknown_property_deep_inside_is_an_error_and_a_missing_one_too() -> None:
    token = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    inputs = {"bucket": UNKNOWN, "region": "us-east-1", "rules": [{"id": "r", "expiration": {"days": 1, "hours": 1}}]}
    _, failures = AwsPackage().check(Request(urn="", type=token, name="life", inputs=inputs))
    assert [failure.property for failure in failures] == ["rules[0].expiration.hours", "rules[0].status"]


def test_an_unknown_type_is_an_error_that_names_it() -> None:
    with pytest.raises(OperationFailed, match="unknown resource type aws:sqs/queue:Queue"):
        AwsPackage().check(Request(urn="", type="aws:sqs/queue:Queue", name="queue", inputs={}))


@pytest.mark.parametrize("token", sorted(RESOURCES))
def test_an_entry_of_the_table_has_only_names_that_the_sdk_has(token: str) -> None:
    resource = RESOURCES[token]
    _, module, name = token.split(":")
    folder = Path(aws.__file__).parent / module.split("/")[0]
    source = (folder / f"{re.sub('(?<!^)(?=[A-Z])', '_', name).lower()}.py").read_text()
    assert f"'{token}'" in source
    classes = re.split(r"^class ", source, flags=re.MULTILINE)[1:]
    names = {text.split("(")[0].split(":")[0]: properties(text) for text in classes}
    arguments = set().union(*(found for name_, found in names.items() if name_.endswith("Args")))
    assert set(resource.row.table) <= arguments
    assert set(resource.row.observe) | set(resource.row.look_ups) <= names[name]


def test_a_value_that_the_program_stops_setting_is_left_to_aws() -> None:
    resource = RESOURCES["aws:fsx/lustreFileSystem:LustreFileSystem"]
    step = (resource.row.update or ())[-1]
    for new, applies in (({"deploymentType": "SCRATCH_2"}, False), ({"weeklyMaintenanceStartTime": "2:00:00"}, True)):
        old = {"deploymentType": "SCRATCH_2", "weeklyMaintenanceStartTime": "1:00:00"}
        call = ResourceCall(
            resource.row, Clients({"region": "us-east-1"}), "a", 0.0, threading.Event(), "fs-1", new, old
        )
        assert resource.applies(call, step) == applies


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"cidrBlok": "replaces"}, "cidrBlok: no inputs of aws:ec2/vpc:Vpc in pulumi_aws"),
        ({"cidrBlock": "replaced"}, "aws:ec2/vpc:Vpc.cidrBlock: unknown words .'replaced'"),
        ({"cidrBlock": {"fields": {"a": None}}}, "aws:ec2/vpc:Vpc.cidrBlock: no object in pulumi_aws"),
    ],
)
def test_a_row_that_the_sdk_contradicts_is_an_error(inputs: dict[str, Any], reason: str) -> None:
    row = replace(RESOURCES["aws:ec2/vpc:Vpc"].row, inputs=inputs)
    with pytest.raises(ValueError, match=reason):
        row.table  # noqa: B018


def test_one_thread_at_a_time_loads_a_service_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's lazy modules show a second thread half of what they load."""
    loading = threading.Lock()

    class Service:
        def __getattr__(self, name: str) -> type:
            assert loading.acquire(blocking=False), "two threads load the service"
            time.sleep(0.05)
            loading.release()
            return str

    monkeypatch.setattr(table, "importlib", SimpleNamespace(import_module=lambda _: Service()))
    with ThreadPoolExecutor(4) as threads:
        assert (
            list(threads.map(table.computed_outputs, [f"aws:none/{n}:None{n}" for n in range(4)])) == [frozenset()] * 4
        )


def properties(text: str) -> set[str]:
    """Wire names in the source of an SDK class: of the `getter` decorator, else the function's own."""
    found = re.findall(r"@pulumi\.getter(?:\(name=\"(\w+)\"\))?\n    def (\w+)", text)
    return {renamed or own for renamed, own in found}


def test_documents_sets_and_amounts_are_compared_by_meaning() -> None:
    table = {
        "policy": Input(kind=Conversion.JSON),
        "groups": Input(kind=Conversion.SET),
        "limit": Input(kind=Conversion.AMOUNT),
        "end": Input(kind=Conversion.TIME),
    }
    old = {"policy": '{"a": ["x", "y"]}', "groups": ["1", "2"], "limit": "100", "end": "2026-07-01T00:00:00Z"}
    new = {"policy": '{"a":["y","x"]}', "groups": ["2", "1"], "limit": "100.0", "end": "2026-07-01T02:00:00+02:00"}
    assert list(changes(table, old, new)) == []
    assert [change.path for change in changes(table, old, {**new, "limit": UNKNOWN})] == ["limit"]


def test_a_change_deep_inside_says_where_and_whether_it_replaces() -> None:
    table = {"template": Input(fields={"id": Input(replaces=True), "version": Input()})}
    old = {"template": {"id": "lt-1", "version": "1"}}
    (update,) = changes(table, old, {"template": {"id": "lt-1", "version": "2"}})
    assert (update.path, update.replaces) == ("template.version", False)
    (replace,) = changes(table, old, {"template": {"id": "lt-2", "version": "1"}})
    assert (replace.path, replace.replaces) == ("template.id", True)


def test_a_refresh_keeps_what_aws_added_out_of_the_inputs() -> None:
    entry = Input(fields={"size": Input(), "zone": Input()})
    assert overlay(entry, {"size": 1}, {"size": 1, "zone": "a"}) == {"size": 1}
    assert overlay(entry, {"size": 1}, {"size": 2, "zone": "a"}) == {"size": 2}


def test_values_survive_the_wire_and_unknowns_stay_visible() -> None:
    values = {"text": "a", "number": 3, "fraction": 0.5, "flag": True, "list": [{"deep": UNKNOWN}], "nothing": None}
    back = decode(encode(values))
    assert back == {name: value for name, value in values.items() if value is not None}
    assert isinstance(back["number"], int)
    assert has_unknown(back) and not has_unknown({**back, "list": []})


def test_an_object_is_replaced_only_for_what_the_api_server_never_changes() -> None:
    old: dict[str, Any] = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "a"},
                           "spec": {"csi": {"volumeHandle": "fs-1"}, "capacity": {"storage": "1Ti"}}}  # fmt: skip
    bigger = {**old, "spec": {**old["spec"], "capacity": {"storage": "2Ti"}}}
    other = {**old, "spec": {**old["spec"], "csi": {"volumeHandle": "fs-2"}}}
    assert [(c.path, c.replaces) for c in objects.changes(old["kind"], old, bigger)] == [
        ("spec.capacity.storage", False)
    ]
    assert [(c.path, c.replaces) for c in objects.changes(old["kind"], old, other)] == [("spec.csi.volumeHandle", True)]


def test_a_quantity_in_another_unit_and_an_omitted_zero_are_no_drift() -> None:
    wanted = {"limits": {"cpu": "1000m", "memory": "1Gi"}, "replicas": 2, "empty": ""}
    live = {"limits": {"cpu": "1", "memory": "1024Mi", "pods": "3"}, "replicas": 3}
    assert objects.overlay(wanted, live) == {"limits": {"cpu": "1000m", "memory": "1Gi"}, "replicas": 3, "empty": ""}
