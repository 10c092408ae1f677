"""The chain of an operator, call by call on the emulated AWS: make a role that trusts oneself, give it every right,
assume it, read. And whom a trust lets in, as IAM decides within one account."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import boto3
import pytest

from infra.rehearsal.aws.world import World
from infra.stack.access.ceiling import ceiling
from infra.stack.access.policies import AccountPlace, document
from tests.rehearsal.acting import OPERATOR, policy
from tests.rehearsal.aws_account import Account, code_of, make_user

pytestmark = pytest.mark.usefixtures("answers_as_modelled")
DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
ROLE = "arn:aws:iam::123456789012:role/"


def text(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def trust(*principals: str, effect: str = "Allow") -> dict[str, Any]:
    return {"Effect": effect, "Principal": {"AWS": list(principals)}, "Action": "sts:AssumeRole"}


def session(world: World, by: Account, role: str) -> Account:
    keys = by.sts.assume_role(RoleArn=role, RoleSessionName="me")["Credentials"]
    account = Account(world, "", "")
    account.session = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], world.region)
    return account


@pytest.fixture(scope="module")
def opened(aws: Account) -> dict[str, str]:
    """Other people's things beside those that their owners have opened to campaigns; the ARN of the boundary."""
    limit = document(ceiling(AccountPlace("123456789012", "us-east-1")))
    boundary = aws.iam.create_policy(PolicyName="bivouac_boundary_us-east-1", PolicyDocument=limit)["Policy"]["Arn"]
    for name in ("payroll", "bivouac_job/token", "bivouac_webhook"):
        aws.secretsmanager.create_secret(Name=name, SecretString="hunter22")
        aws.ssm.put_parameter(Name=f"/{name}", Value="hunter22", Type="SecureString")
    for bucket, tag in (("payroll", "team"), ("texts", "bivouac:text")):
        aws.s3.create_bucket(Bucket=bucket)
        aws.s3.put_object(Bucket=bucket, Key="a", Body=b"1")
        aws.s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": tag, "Value": "true"}]})
        aws.s3.put_bucket_abac(Bucket=bucket, AbacStatus={"Status": "Enabled"})
        assert aws.s3.get_bucket_abac(Bucket=bucket)["AbacStatus"] == {"Status": "Enabled"}
    topics = {name: aws.sns.create_topic(Name=name)["TopicArn"] for name in ("payroll", "bivouac_notices")}
    keys = {
        tag: aws.kms.create_key(Tags=[{"TagKey": tag, "TagValue": "x"}])["KeyMetadata"]["Arn"]
        for tag in ("team", "bivouac:key")
    }
    return {"boundary": boundary, **topics, **keys}


def test_what_an_operators_own_role_reads_is_what_its_owners_have_opened(
    world: World, aws: Account, opened: dict[str, str]
) -> None:
    statements = [one for name in OPERATOR for one in policy(name)["Statement"]]
    operator = Account(world, *make_user(world, "chained", *statements))
    me = operator.sts.get_caller_identity()["Arn"]
    kinds = ("trainer", "steward", "data", "cluster", "node")
    got = dict[str, dict[str, bool]]()
    for kind in kinds:
        name = f"bivouac-x-{kind}"
        tags = [{"Key": "bivouac:campaign", "Value": "x"}]
        given = {"RoleName": name, "AssumeRolePolicyDocument": text(trust(me)), "Tags": tags}
        assert not allowed(partial(operator.iam.create_role, **given)), "without the boundary"
        operator.iam.create_role(**given, PermissionsBoundary=opened["boundary"])
        everything = text({"Effect": "Allow", "Action": "*", "Resource": "*"})
        operator.iam.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=everything)
        retrust = partial(operator.iam.update_assume_role_policy, PolicyDocument=text(trust(me)))
        assert not allowed(partial(retrust, RoleName=name))
        # The operator's policies do not allow sts:AssumeRole: the trust, which names it, is enough.
        got[kind] = reads(session(world, operator, f"{ROLE}{name}"), opened)
    assert {kind: sorted(name for name, read in found.items() if read) for kind, found in got.items()} == {
        "trainer": ["parameter bivouac_job/token", "secret bivouac_job/token"],
        "steward": ["parameter bivouac_webhook", "secret bivouac_webhook", "topic bivouac_notices"],
        "data": ["list texts", "object texts"],
        "cluster": ["key bivouac:key"],
        "node": [],
    }  # fmt: skip


def reads(role: Account, opened: dict[str, str]) -> dict[str, bool]:
    calls: dict[str, Callable[[], Any]] = {}
    mark = {"TagSet": [{"Key": "bivouac:text", "Value": "true"}]}
    for name in ("payroll", "bivouac_job/token", "bivouac_webhook"):
        calls[f"secret {name}"] = partial(role.secretsmanager.get_secret_value, SecretId=name)
        calls[f"parameter {name}"] = partial(role.ssm.get_parameter, Name=f"/{name}", WithDecryption=True)
    for bucket in ("payroll", "texts"):
        calls[f"object {bucket}"] = partial(role.s3.get_object, Bucket=bucket, Key="a")
        calls[f"list {bucket}"] = partial(role.s3.list_objects_v2, Bucket=bucket)
        calls[f"open {bucket}"] = partial(role.s3.put_bucket_tagging, Bucket=bucket, Tagging=mark)
    for topic in ("payroll", "bivouac_notices"):
        calls[f"topic {topic}"] = partial(role.sns.publish, TopicArn=opened[topic], Message="x")
    for key in ("team", "bivouac:key"):
        calls[f"key {key}"] = partial(role.kms.encrypt, KeyId=opened[key], Plaintext=b"x")
    return {name: allowed(call) for name, call in calls.items()}


def allowed(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code")
        assert code in DENIED, error
        return False
    return True


ASSUME = {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"}
LOOK = {"Effect": "Allow", "Action": "iam:GetUser", "Resource": "*"}
NOT = {"Effect": "Deny", "Action": "sts:AssumeRole", "Resource": "*"}
ACCOUNT = "arn:aws:iam::123456789012:root"
TRUSTS = [
    # The trust's principal (ME: the caller's own name), the caller's own policies, whether it may assume the role.
    ("ME", [], True),
    ("ME", [NOT], False),
    (ACCOUNT, [], False),
    (ACCOUNT, [ASSUME], True),
    (ACCOUNT, [ASSUME, NOT], False),
    ("arn:aws:iam::123456789012:user/chained", [ASSUME], False),
]


@pytest.mark.parametrize(("principal", "own", "may"), TRUSTS, ids=range(len(TRUSTS)))
@pytest.mark.parametrize("kind", ["user", "role"])
def test_a_trust_lets_in_whom_it_names_and_leaves_the_account_to_its_policies(
    world: World, aws: Account, opened: dict[str, str], principal: str,
    own: list[dict[str, Any]], may: bool, kind: str,
) -> None:  # fmt: skip
    tag = f"{kind}-{TRUSTS.index((principal, own, may))}"
    who = Account(world, *make_user(world, f"caller-{tag}", *(own if kind == "user" else [ASSUME]), LOOK))
    me = who.sts.get_caller_identity()["Arn"]
    if kind == "role":
        made = aws.iam.create_role(RoleName=f"caller-{tag}", AssumeRolePolicyDocument=text(trust(me)))
        for number, statement in enumerate(own):
            aws.iam.put_role_policy(RoleName=f"caller-{tag}", PolicyName=str(number), PolicyDocument=text(statement))
        me, who = made["Role"]["Arn"], session(world, who, made["Role"]["Arn"])
    target = f"target-{tag}"
    given = text(trust(principal.replace("ME", me)))
    aws.iam.create_role(RoleName=target, AssumeRolePolicyDocument=given)
    assert allowed(lambda: who.sts.assume_role(RoleArn=f"{ROLE}{target}", RoleSessionName="someone")) is may


@pytest.mark.parametrize(("by_session", "may"), [(False, False), (True, True)])
def test_a_boundary_limits_what_a_trust_gives_the_role_but_not_what_it_gives_a_session(
    world: World, aws: Account, opened: dict[str, str], by_session: bool, may: bool
) -> None:
    name = f"limited-{by_session}"
    admin = aws.sts.get_caller_identity()["Arn"]
    arn = aws.iam.create_role(
        RoleName=name, AssumeRolePolicyDocument=text(trust(admin)), PermissionsBoundary=opened["boundary"]
    )["Role"]["Arn"]
    who = session(world, aws, arn)
    me = who.sts.get_caller_identity()["Arn"] if by_session else arn
    aws.iam.create_role(RoleName=f"{name}-target", AssumeRolePolicyDocument=text(trust(me)))
    assert allowed(lambda: who.sts.assume_role(RoleArn=f"{ROLE}{name}-target", RoleSessionName="someone")) is may


def test_the_user_data_of_an_instance_is_asked_of_the_instance(world: World, aws: Account) -> None:
    image = aws.ec2.describe_images()["Images"][0]["ImageId"]
    ids = dict[str, str]()
    for tag in ("team", "bivouac:campaign"):
        marks = [{"ResourceType": "instance", "Tags": [{"Key": tag, "Value": "x"}]}]
        made = aws.ec2.run_instances(
            ImageId=image, MinCount=1, MaxCount=1, InstanceType="m7i.large", TagSpecifications=marks
        )
        ids[tag] = made["Instances"][0]["InstanceId"]
    looker = Account(world, *make_user(world, "looker", *policy("operator/look")["Statement"]))
    asked = {"Attribute": "userData"}
    assert looker.ec2.describe_instance_attribute(**asked, InstanceId=ids["bivouac:campaign"])["InstanceId"]
    code = code_of(lambda: looker.ec2.describe_instance_attribute(**asked, InstanceId=ids["team"]))
    assert code == "UnauthorizedOperation"
    assert looker.ec2.describe_instances(InstanceIds=list(ids.values()))["Reservations"]


def test_a_bucket_with_abac_takes_its_tags_by_another_call(aws: Account, opened: dict[str, str]) -> None:
    tags = {"TagSet": [{"Key": "bivouac:text", "Value": "true"}]}
    assert code_of(lambda: aws.s3.put_bucket_tagging(Bucket="payroll", Tagging=tags)) not in DENIED
    aws.s3.create_bucket(Bucket="fresh")
    assert aws.s3.get_bucket_abac(Bucket="fresh")["AbacStatus"] == {"Status": "Disabled"}
