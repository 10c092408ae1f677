"""What the emulated AWS takes as a text, by cases that AWS's documentation and refusals decide."""

from __future__ import annotations

from typing import Any

import pytest
from moto.core.utils import get_service_model

from infra.rehearsal.aws.answers import RequestRefused
from infra.rehearsal.aws.strict.admission import refuse_unfit

BRACKETS, FOREIGN = "ann (ml, eu)", "Zoë 王 ada@example.com"


def listed(value: str) -> list[dict[str, str]]:
    return [{"Key": "bivouac:owner", "Value": value}]


CASES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("iam", "CreateRole", {"Tags": listed(FOREIGN)}, "", ""),
    ("iam", "CreateRole", {"Tags": listed(BRACKETS)}, "ValidationError", "tags.1.member.value"),
    ("iam", "CreateRole", {"Tags": listed("a\tb")}, "ValidationError", "tags.1.member.value"),
    ("iam", "CreateRole", {"Tags": listed("x" * 256)}, "", ""),
    ("iam", "CreateRole", {"Tags": listed("x" * 257)}, "ValidationError", "less than or equal to 256"),
    ("iam", "CreateRole", {"Tags": listed("x") * 51}, "ValidationError", "less than or equal to 50"),
    ("iam", "CreateRole", {"RoleName": "r" * 64, "Description": "é"}, "", ""),
    ("iam", "CreateRole", {"RoleName": "r" * 65}, "ValidationError", "roleName"),
    ("iam", "CreateRole", {"RoleName": "rôle"}, "ValidationError", "roleName"),
    ("iam", "CreateRole", {"Description": "王"}, "ValidationError", "description"),
    ("fsx", "CreateFileSystem", {"Tags": listed(BRACKETS)}, "ValidationException", "tags.1.member.value"),
    ("logs", "CreateLogGroup", {"tags": {"bivouac:owner": FOREIGN}}, "", ""),
    ("logs", "CreateLogGroup", {"tags": {"bivouac:owner": BRACKETS}}, "InvalidParameterException", "tags"),
    ("logs", "CreateLogGroup", {"tags": {"a(b": "x"}}, "InvalidParameterException", "tags"),
    ("eks", "CreateCluster", {"name": "c", "tags": {"bivouac:owner": BRACKETS}}, "", ""),
    ("eks", "CreateCluster", {"name": "c", "tags": {"a": "x" * 257}}, "InvalidParameterException", "tags"),
    ("eks", "CreateCluster", {"name": "a b"}, "InvalidParameterException", "name"),
    ("ec2", "RunInstances", {"TagSpecifications": [{"Tags": listed(BRACKETS)}]}, "", ""),
    ("ec2", "RunInstances", {"TagSpecifications": [{"Tags": listed("x" * 257)}]}, "InvalidParameterValue", "256"),
    ("ec2", "CreateTags", {"Tags": [{"Key": "k" * 128, "Value": ""}]}, "InvalidParameterValue", "127"),
    ("ec2", "CreateSecurityGroup", {"Description": "nodes, EFA"}, "", ""),
    ("ec2", "CreateSecurityGroup", {"Description": "Ann's"}, "InvalidParameterValue", "description"),
    ("ec2", "CreateImage", {"Name": "a*b"}, "InvalidAMIName.Malformed", "name"),
    ("s3", "PutBucketTagging", {"Tagging": {"TagSet": listed(BRACKETS)}}, "InvalidTag", "tagSet"),
    ("scheduler", "CreateSchedule", {"Name": "a b"}, "ValidationException", "name"),
    ("sns", "Publish", {"Subject": "s" * 99, "Message": "two\nlines"}, "", ""),
    ("sns", "Publish", {"Subject": "two\nlines"}, "InvalidParameter", "subject"),
]


@pytest.mark.parametrize(("service", "operation", "request_", "code", "words"), CASES)
def test_a_text_is_taken_or_refused_as_by_aws(
    service: str, operation: str, request_: dict[str, Any], code: str, words: str
) -> None:
    model = get_service_model(service).operation_model(operation)
    if not code:
        refuse_unfit(service, model, request_)
        return
    with pytest.raises(RequestRefused) as refusal:
        refuse_unfit(service, model, request_)
    assert refusal.value.code == code and words in refusal.value.message
    assert refusal.value.message.startswith("1 validation error detected: Value '")


def test_a_secret_text_is_not_quoted() -> None:
    model = get_service_model("secretsmanager").operation_model("CreateSecret")
    with pytest.raises(RequestRefused) as refusal:
        refuse_unfit("secretsmanager", model, {"SecretString": "s" * 65537})
    assert "sss" not in refusal.value.message
