"""The emulated AWS over HTTP: what a call asks for besides its name, and what limits the caller."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from infra.rehearsal.aws.world import World
from tests.rehearsal.aws_account import Account, code_of, make_user

pytestmark = pytest.mark.usefixtures("answers_as_modelled")

DENIED = {"AccessDenied", "AccessDeniedException", "403"}
MARK = [{"Key": "bivouac:campaign", "Value": "camp"}]


def may(action: str | list[str], resource: str = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


@pytest.fixture
def acts(world: World) -> Callable[..., Account]:
    def make(name: str, *statements: dict[str, Any]) -> Account:
        return Account(world, *make_user(world, name, *statements))

    return make


def test_a_buckets_policy_refuses_whoever_does_not_come_over_tls(world: World, aws: Account) -> None:
    aws.s3.create_bucket(Bucket="tls")
    aws.s3.put_object(Bucket="tls", Key="a", Body=b"1")
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": ["arn:aws:s3:::tls", "arn:aws:s3:::tls/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    aws.s3.put_bucket_policy(Bucket="tls", Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    assert aws.s3.get_object(Bucket="tls", Key="a")["Body"].read() == b"1"
    plain = Account(world, *world.operator_key).s3
    plain.meta.events.register("before-sign.s3", lambda request, **_: request.headers.add_header(
        "X-Forwarded-Proto", "http"))  # fmt: skip
    for call in (
        lambda: plain.get_object(Bucket="tls", Key="a"),
        lambda: plain.put_object(Bucket="tls", Key="b", Body=b"2"),
        lambda: plain.list_objects_v2(Bucket="tls"),
    ):
        assert code_of(call) in DENIED


def test_a_buckets_policy_is_asked_with_its_caller(aws: Account, acts: Callable[..., Account]) -> None:
    ann, bob = acts("ann", may("iam:GetUser")), acts("bob", may("s3:*"))
    aws.s3.create_bucket(Bucket="shared")
    aws.s3.put_object(Bucket="shared", Key="a", Body=b"1")
    account = aws.sts.get_caller_identity()["Account"]
    about = {"Action": "s3:GetObject", "Resource": "arn:aws:s3:::shared/*"}
    lets = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{account}:user/ann"}, **about}
    bars = {"Effect": "Deny", "Principal": {"AWS": f"arn:aws:iam::{account}:user/bob"}, **about}
    to_all = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{account}:root"}, **about}
    document = {"Version": "2012-10-17", "Statement": [lets, bars, to_all]}
    aws.s3.put_bucket_policy(Bucket="shared", Policy=json.dumps(document))
    assert ann.s3.get_object(Bucket="shared", Key="a")["Body"].read() == b"1"
    assert code_of(lambda: bob.s3.get_object(Bucket="shared", Key="a")) in DENIED, "though its own policy allows it"
    third = acts("third", may("iam:GetUser"))
    assert code_of(lambda: third.s3.get_object(Bucket="shared", Key="a")) in DENIED, "the account leaves it to IAM"


def test_versions_and_locks_are_rights_of_their_own(aws: Account, acts: Callable[..., Account]) -> None:
    aws.s3.create_bucket(Bucket="versions")
    aws.s3.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    version = aws.s3.put_object(Bucket="versions", Key="a", Body=b"1")["VersionId"]
    where = {"Bucket": "versions", "Key": "a"}
    plain = acts("deleter", may(["s3:DeleteObject", "s3:GetObject"])).s3
    plain.delete_object(**where)
    named = {"Objects": [{"Key": "a", "VersionId": version}]}
    for call in (
        lambda: plain.get_object(**where, VersionId=version),
        lambda: plain.delete_object(**where, VersionId=version),
        lambda: plain.delete_objects(Bucket="versions", Delete=named),
        lambda: plain.delete_object(**where, BypassGovernanceRetention=True),
    ):
        assert code_of(call) in DENIED
    whole = acts("version-deleter", may(["s3:DeleteObjectVersion", "s3:GetObjectVersion"])).s3
    assert whole.get_object(**where, VersionId=version)["Body"].read() == b"1"
    bypass = {**where, "VersionId": version, "BypassGovernanceRetention": True}
    assert code_of(lambda: whole.delete_object(**bypass)) in DENIED
    whole.delete_object(**where, VersionId=version)


def test_who_gives_tags_at_creation_may_tag(
    aws: Account, network: SimpleNamespace, acts: Callable[..., Account]
) -> None:
    request: dict[str, Any] = {
        "FileSystemType": "LUSTRE",
        "StorageCapacity": 1200,
        "SubnetIds": [network.subnet],
        "SecurityGroupIds": [network.group],
        "LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
    }
    maker = acts("maker", may(["fsx:CreateFileSystem", "iam:CreateRole"]))
    assert code_of(lambda: maker.fsx.create_file_system(**request, Tags=MARK)) in DENIED
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    tagged = {"RoleName": "tagged", "AssumeRolePolicyDocument": trust, "Tags": MARK}
    assert code_of(lambda: maker.iam.create_role(**tagged)) in DENIED
    creation = may("fsx:TagResource", "arn:aws:fsx:*:*:file-system/${*}")
    both = acts("maker-who-tags", may("fsx:CreateFileSystem"), creation)
    file_system = both.fsx.create_file_system(**request, Tags=MARK)["FileSystem"]
    assert code_of(lambda: both.fsx.tag_resource(ResourceARN=file_system["ResourceARN"], Tags=MARK)) in DENIED
    aws.fsx.delete_file_system(FileSystemId=file_system["FileSystemId"])


def test_a_role_does_what_its_policies_and_its_boundary_both_allow(world: World, aws: Account) -> None:
    account = aws.sts.get_caller_identity()["Account"]
    trust = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{account}:root"}, "Action": "sts:AssumeRole"}

    def text(*statements: dict[str, Any]) -> str:
        return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})

    limit = aws.iam.create_policy(PolicyName="limit", PolicyDocument=text(may(["ec2:DescribeVpcs", "iam:GetRole"])))
    arn = limit["Policy"]["Arn"]
    role = aws.iam.create_role(RoleName="under", AssumeRolePolicyDocument=text(trust), PermissionsBoundary=arn)
    aws.iam.put_role_policy(RoleName="under", PolicyName="own", PolicyDocument=text(may(["ec2:*", "s3:*"])))
    keys = aws.sts.assume_role(RoleArn=role["Role"]["Arn"], RoleSessionName="me")["Credentials"]
    session = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], world.region)
    under = {name: session.client(name, endpoint_url=world.endpoint_url) for name in ("ec2", "s3", "iam")}
    assert under["ec2"].describe_vpcs()["Vpcs"] is not None
    assert code_of(lambda: under["ec2"].describe_subnets()) == "UnauthorizedOperation", "beyond the boundary"
    assert code_of(lambda: under["s3"].list_buckets()) in DENIED
    assert code_of(lambda: under["iam"].get_role(RoleName="under")) in DENIED, "a boundary grants nothing"


def test_rights_on_roles_are_bound_to_their_boundary(aws: Account, acts: Callable[..., Account]) -> None:
    account = aws.sts.get_caller_identity()["Account"]
    limit = f"arn:aws:iam::{account}:policy/limits"
    bound = {"Condition": {"ArnLike": {"iam:PermissionsBoundary": limit}}}
    text = json.dumps({"Version": "2012-10-17", "Statement": []})
    aws.iam.create_policy(PolicyName="limits", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [
        may("ec2:DescribeVpcs")]}))  # fmt: skip
    change = ["iam:CreateRole", "iam:PutRolePolicy", "iam:PutRolePermissionsBoundary", "iam:AttachRolePolicy"]
    iam = acts("role-maker", may(change, "arn:aws:iam::*:role/bound-*", **bound)).iam
    given: dict[str, Any] = {"RoleName": "bound-a", "AssumeRolePolicyDocument": text}
    assert code_of(lambda: iam.create_role(**given)) in DENIED
    iam.create_role(**given, PermissionsBoundary=limit)
    harmless = json.dumps({"Version": "2012-10-17", "Statement": [may("ec2:DescribeVpcs")]})
    policy = {"PolicyName": "own", "PolicyDocument": harmless}
    iam.put_role_policy(RoleName="bound-a", **policy)
    aws.iam.create_role(RoleName="bound-free", AssumeRolePolicyDocument=text)
    other = "arn:aws:iam::aws:policy/AdministratorAccess"
    for call in (
        lambda: iam.put_role_policy(RoleName="bound-free", **policy),
        lambda: iam.attach_role_policy(RoleName="bound-free", PolicyArn=other),
        lambda: iam.put_role_permissions_boundary(RoleName="bound-a", PermissionsBoundary=other),
        lambda: iam.delete_role_permissions_boundary(RoleName="bound-a"),
    ):
        assert code_of(call) in DENIED


def test_rights_on_a_log_group_name_its_streams_and_those_on_its_tags_do_not(
    aws: Account, acts: Callable[..., Account]
) -> None:
    group, changes = "arn:aws:logs:*:*:log-group:/aws/x", ["logs:CreateLogGroup", "logs:PutRetentionPolicy"]
    tags = ["logs:ListTagsForResource", "logs:TagResource"]
    bare = acts("names-the-group", may([*changes, *tags], group)).logs
    assert code_of(lambda: bare.create_log_group(logGroupName="/aws/x")) in DENIED
    streams = acts("names-the-streams", may([*changes, *tags], f"{group}:*")).logs
    assert code_of(lambda: streams.create_log_group(logGroupName="/aws/x", tags={"a": "b"})) in DENIED
    both = acts("names-both", may(changes, f"{group}:*"), may(tags, group)).logs
    both.create_log_group(logGroupName="/aws/x", tags={"a": "b"})
    both.put_retention_policy(logGroupName="/aws/x", retentionInDays=30)
    arn = f"arn:aws:logs:us-east-1:{aws.sts.get_caller_identity()['Account']}:log-group:/aws/x"
    assert both.list_tags_for_resource(resourceArn=arn)["tags"] == {"a": "b"}


def test_texts_that_aws_refuses_are_refused_by_every_service_with_a_pattern(aws: Account) -> None:
    wrong = [{"Key": "bivouac:owner", "Value": "ann (ml, eu)"}]
    aws.s3.create_bucket(Bucket="tagged")
    for call, code in (
        (lambda: aws.iam.create_policy(PolicyName="p", PolicyDocument="{}", Tags=wrong), "ValidationError"),
        (lambda: aws.logs.create_log_group(logGroupName="g", tags={"o": "a(b"}), "InvalidParameterException"),
        (lambda: aws.s3.put_bucket_tagging(Bucket="tagged", Tagging={"TagSet": wrong}), "InvalidTag"),
        (
            lambda: aws.ssm.add_tags_to_resource(ResourceType="Parameter", ResourceId="p", Tags=wrong),
            "ValidationException",
        ),
    ):
        assert code_of(call) == code
    assert aws.ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=[{"ResourceType": "vpc", "Tags": wrong}])[
        "Vpc"
    ]


def test_what_cannot_be_named_is_denied_by_a_statement_that_names_something(acts: Callable[..., Account]) -> None:
    named = acts("names-things", may("cloudwatch:*", "arn:aws:cloudwatch:*:*:alarm:*"))
    assert code_of(lambda: named.cloudwatch.list_metrics()) in DENIED
    assert acts("names-nothing", may("cloudwatch:ListMetrics")).cloudwatch.list_metrics()["Metrics"]
    ends = acts("ends", may("autoscaling:*", "arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/x"))
    unheld = {"InstanceId": "i-0123456789abcdef0", "ShouldDecrementDesiredCapacity": False}
    gone = code_of(lambda: ends.autoscaling.terminate_instance_in_auto_scaling_group(**unheld))
    assert gone == "ValidationError", "the group is looked for first"
