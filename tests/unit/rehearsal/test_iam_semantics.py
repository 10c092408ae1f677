"""The emulated IAM against IAM's documentation: what a condition, a resource, a principal means. All by hand."""

from __future__ import annotations

from typing import Any

import pytest

from infra.rehearsal.aws.iam.asked_tags import given_tags
from infra.rehearsal.aws.iam.policies import Question, allowed, trusts, verdict

FILE = "arn:aws:s3:::box/a/file"


def document(*statements: dict[str, Any], version: str = "2012-10-17") -> dict[str, Any]:
    return {"Version": version, "Statement": list(statements)}


def statement(effect: str = "Allow", **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"Effect": effect}
    if not {"Action", "NotAction"} & set(more):
        base["Action"] = "s3:GetObject"
    if not {"Resource", "NotResource"} & set(more):
        base["Resource"] = "*"
    return base | more


def holds(condition: dict[str, Any], effect: str = "Allow", /, **context: list[str]) -> bool:
    """Whether a statement with this condition applies; keys are written with `__` for `:`."""
    asked = Question("s3:GetObject", FILE, {key.replace("__", ":").lower(): value for key, value in context.items()})
    return verdict([document(statement(effect, Condition=condition))], asked) == effect


ABSENT = [
    ("StringEquals", "x", False),
    ("StringLike", "*", False),
    ("StringEqualsIgnoreCase", "x", False),
    ("StringNotEquals", "x", True),
    ("StringNotLike", "x*", True),
    ("StringNotEqualsIgnoreCase", "x", True),
    ("ArnLike", "arn:aws:iam::1:role/x", False),
    ("ArnEquals", "arn:aws:iam::1:role/x", False),
    ("ArnNotEquals", "arn:aws:iam::1:role/x", True),
    ("ArnNotLike", "arn:aws:iam::1:role/x", True),
    ("Bool", "true", False),
    ("Bool", "false", False),
    ("NumericLessThan", "5", False),
    ("NumericNotEquals", "5", True),
    ("DateGreaterThan", "2020-01-01T00:00:00Z", False),
    ("DateNotEquals", "2020-01-01T00:00:00Z", True),
    ("IpAddress", "10.0.0.0/8", False),
    ("NotIpAddress", "10.0.0.0/8", True),
    ("Null", "true", True),
    ("Null", "false", False),
    ("StringEqualsIfExists", "x", True),
    ("StringLikeIfExists", "x*", True),
    ("BoolIfExists", "true", True),
    ("ForAllValues:StringEquals", "x", True),
    ("ForAllValues:StringNotEquals", "x", True),
    ("ForAnyValue:StringEquals", "x", False),
    ("ForAnyValue:StringNotEquals", "x", False),
    ("ForAnyValue:StringEqualsIfExists", "x", True),
]


@pytest.mark.parametrize(("operator", "value", "met"), ABSENT)
def test_a_key_that_the_request_lacks(operator: str, value: str, met: bool) -> None:
    assert holds({operator: {"aws:key": value}}) is met
    assert holds({operator: {"aws:key": value}}, "Deny") is met
    assert holds({operator: {"aws:key": value}}, aws__key=[]) is met, "an empty set is no value"


PRESENT = [
    ("StringEquals", ["a", "b"], "b", True),
    ("StringEquals", "A", "a", False),
    ("StringEquals", "a*", "ab", False),
    ("StringEqualsIgnoreCase", "A", "a", True),
    ("StringNotEquals", ["a", "b"], "b", False),
    ("StringNotEquals", ["a", "b"], "c", True),
    ("StringNotEqualsIgnoreCase", "A", "a", False),
    ("StringLike", "a*c?", "abbbcd", True),
    ("StringLike", "A*", "ab", False),
    ("StringNotLike", ["a*", "b*"], "ca", True),
    ("StringNotLike", ["a*", "b*"], "ba", False),
    ("StringEqualsIfExists", "x", "y", False),
    ("Null", "false", "x", True),
    ("Null", "true", "x", False),
    ("Bool", "true", "TRUE", True),
    ("Bool", "false", "true", False),
    ("Bool", "true", "1", False),
    ("NumericEquals", "10", "10.0", True),
    ("NumericNotEquals", "10", "10.0", False),
    ("NumericLessThan", "10", "9", True),
    ("NumericLessThan", "10", "10", False),
    ("NumericLessThanEquals", "10", "10", True),
    ("NumericGreaterThan", "9", "10", True),
    ("NumericGreaterThan", "10", "10", False),
    ("NumericGreaterThanEquals", "10", "10", True),
    ("NumericLessThan", "10", "many", False),
    ("DateLessThan", "2026-01-01T00:00:00Z", "2025-12-31T23:59:59Z", True),
    ("DateLessThan", "2026-01-01T00:00:00+02:00", "2025-12-31T23:00:00Z", False),
    ("DateGreaterThan", "2026-01-01T00:00:00Z", "1767225601", True),
    ("DateGreaterThanEquals", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", True),
    ("DateLessThanEquals", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", True),
    ("DateEquals", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", True),
    ("DateNotEquals", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", False),
    ("ArnLike", "arn:aws:iam::*:role/b*", "arn:aws:iam::1:role/box", True),
    ("ArnEquals", "arn:aws:iam::*:role/b*", "arn:aws:iam::1:role/box", True),
    ("ArnLike", "arn:aws:*:role/b*", "arn:aws:iam::1:role/box", False),
    ("ArnLike", "arn:aws:sns:*:1:x", "arn:aws:sns:a:b:1:x", False),
    ("ArnNotLike", "arn:aws:iam::*:role/b*", "arn:aws:iam::1:role/box", False),
    ("ArnNotEquals", "arn:aws:iam::*:role/c*", "arn:aws:iam::1:role/box", True),
    ("IpAddress", "10.0.0.0/8", "10.9.9.9", True),
    ("NotIpAddress", ["10.0.0.0/8", "192.168.0.0/16"], "192.168.1.1", False),
    ("BinaryEquals", "QmluYXJ5", "QmluYXJ5", True),
]


@pytest.mark.parametrize(("operator", "values", "seen", "met"), PRESENT)
def test_a_key_with_one_value(operator: str, values: Any, seen: str, met: bool) -> None:
    assert holds({operator: {"aws:Key": values}}, aws__key=[seen]) is met


SETS = [
    ("ForAllValues:StringEquals", ["a", "b"], ["a"], True),
    ("ForAllValues:StringEquals", ["a", "b"], ["a", "c"], False),
    ("ForAnyValue:StringEquals", ["a", "b"], ["c", "b"], True),
    ("ForAnyValue:StringEquals", ["a", "b"], ["c"], False),
    ("ForAnyValue:StringLike", "bivouac:*", ["Name", "bivouac:campaign"], True),
    ("ForAllValues:StringLike", "bivouac:*", ["Name", "bivouac:campaign"], False),
    ("ForAllValues:StringNotEquals", ["a", "b"], ["c", "d"], True),
    ("ForAllValues:StringNotEquals", ["a", "b"], ["c", "a"], False),
    ("ForAnyValue:StringNotEquals", ["a", "b"], ["c", "a"], True),
    ("ForAnyValue:StringNotEquals", ["a", "b"], ["b", "a"], False),
]


@pytest.mark.parametrize(("operator", "values", "seen", "met"), SETS)
def test_a_key_with_a_set_of_values(operator: str, values: Any, seen: list[str], met: bool) -> None:
    assert holds({operator: {"aws:TagKeys": values}}, aws__tagkeys=seen) is met


def test_several_values_without_a_set_operator_are_nothing_to_allow_by_and_enough_to_deny_by() -> None:
    """IAM promises nothing of it."""
    assert not holds({"StringEquals": {"aws:TagKeys": ["a", "b"]}}, aws__tagkeys=["a", "b"])
    assert holds({"StringEquals": {"aws:TagKeys": "z"}}, "Deny", aws__tagkeys=["a", "b"])


def test_all_operators_and_all_keys_of_a_condition_must_hold() -> None:
    both = {"StringEquals": {"aws:a": "1", "aws:b": "2"}, "Bool": {"aws:c": "true"}}
    assert holds(both, aws__a=["1"], aws__b=["2"], aws__c=["true"])
    assert not holds(both, aws__a=["1"], aws__b=["3"], aws__c=["true"])
    assert not holds(both, aws__a=["1"], aws__b=["2"], aws__c=["false"])


def test_an_operator_that_is_not_known_is_an_error_and_no_answer() -> None:
    with pytest.raises(ValueError, match="StringSimilar"):
        holds({"StringSimilar": {"aws:a": "1"}})


def test_the_condition_on_transport_goes_by_what_the_request_says() -> None:
    tls = document(statement(), statement("Deny", Condition={"Bool": {"aws:SecureTransport": "false"}}))
    assert allowed([tls], Question("s3:GetObject", FILE, {"aws:securetransport": ["true"]}))
    assert not allowed([tls], Question("s3:GetObject", FILE, {"aws:securetransport": ["false"]}))


def test_an_explicit_deny_wins_wherever_it_stands() -> None:
    yes, no = document(statement()), document(statement("Deny", Resource=FILE))
    for order in ([yes, no], [no, yes], [document(statement(), statement("Deny"))]):
        assert not allowed(order, Question("s3:GetObject", FILE))
    assert allowed([yes, no], Question("s3:GetObject", f"{FILE}-2"))
    assert not allowed([], Question("s3:GetObject", FILE)), "what nobody allows is denied"


RESOURCES = [
    ("arn:aws:s3:::box/*", "arn:aws:s3:::box/a/b", True),
    ("arn:aws:s3:::box", "arn:aws:s3:::box/a", False),
    ("arn:aws:s3:::bo?/a", "arn:aws:s3:::box/a", True),
    ("arn:aws:eks:*:*:nodegroup/camp/gpu/*", "arn:aws:eks:us-east-1:1:nodegroup/camp/gpu/77", True),
    ("arn:aws:eks:*:*:nodegroup/camp/gpu/*", "arn:aws:eks:us-east-1:1:nodegroup/camp/gpu-2/77", False),
    ("arn:aws:ssm:*::parameter/aws/service/*", "arn:aws:ssm:us-east-1::parameter/aws/service/eks/x", True),
    ("arn:aws:ssm:*::parameter/aws/service/*", "arn:aws:ssm:us-east-1:1:parameter/aws/service/eks/x", False),
    ("arn:aws:sns:*:x", "arn:aws:sns:us-east-1:1:x", False),
    ("arn:aws:s3", "arn:aws:s3:::box", True),
    ("arn:aws:iam::*:role/*", "*", False),
    ("*", "*", True),
    ("arn:aws:fsx:*:*:file-system/${*}", "arn:aws:fsx:us-east-1:1:file-system/*", True),
    ("arn:aws:fsx:*:*:file-system/${*}", "arn:aws:fsx:us-east-1:1:file-system/fs-1", False),
    ("arn:aws:fsx:*:*:file-system/fs-*", "arn:aws:fsx:us-east-1:1:file-system/*", False),
]


@pytest.mark.parametrize(("pattern", "arn", "met"), RESOURCES)
def test_a_resource_is_compared_part_by_part(pattern: str, arn: str, met: bool) -> None:
    asked = Question("s3:GetObject", arn)
    assert allowed([document(statement(Resource=pattern))], asked) is met
    if pattern != "*":
        assert allowed([document(statement(NotResource=pattern))], asked) is not met


def test_a_resource_that_nobody_can_name_is_allowed_by_a_star_alone_and_denied_by_any_denial() -> None:
    unknown = Question("s3:GetObject", None)
    assert allowed([document(statement(Resource="*"))], unknown)
    assert not allowed([document(statement(Resource="arn:aws:s3:::box/*"))], unknown)
    assert not allowed([document(statement(Resource="arn:aws:*:*:*:*"))], unknown)
    assert not allowed([document(statement(NotResource="arn:aws:s3:::vault/*"))], unknown)
    assert not allowed([document(statement(), statement("Deny", Resource="arn:aws:s3:::vault/*"))], unknown)
    assert not allowed([document(statement(), statement("Deny", NotResource="arn:aws:s3:::box/*"))], unknown)


def test_a_statement_of_an_identity_without_a_resource_allows_nothing() -> None:
    assert not allowed([document({"Effect": "Allow", "Action": "*"})], Question("s3:GetObject", FILE))


def test_actions_are_compared_without_case_and_by_what_they_are_not() -> None:
    assert allowed([document(statement(Action="S3:getobject"))], Question("s3:GetObject", FILE))
    assert not allowed([document(statement(Action="s3:GetObject"))], Question("s3:GetObjectVersion", FILE))
    but = document(statement(NotAction=["iam:*", "s3:Delete*"]))
    assert allowed([but], Question("s3:GetObject", FILE)) and not allowed([but], Question("s3:DeleteObject", FILE))
    assert not allowed([but], Question("IAM:CreateRole", "arn:aws:iam::1:role/x"))


HOME = "arn:aws:s3:::box/${aws:username}/*"


def test_a_policy_variable_stands_for_the_requests_value_and_for_nothing_without_one() -> None:
    def may(pattern: str, key: str, version: str = "2012-10-17", **context: list[str]) -> bool:
        given = {name.replace("__", ":").replace("_S_", "/"): value for name, value in context.items()}
        asked = Question("s3:GetObject", f"arn:aws:s3:::box/{key}", given)
        return allowed([document(statement(Resource=pattern), version=version)], asked)

    assert may(HOME, "ann/x", aws__username=["ann"])
    assert not may(HOME, "bob/x", aws__username=["ann"])
    assert not may(HOME, "ann/x"), "no value"
    assert not may(HOME, "ann/x", aws__username=["ann", "bob"]), "several"
    assert not may(HOME, "ann/x", aws__username=["*"]), "a value is no pattern"
    assert not may(HOME, "ann/x", "2008-10-17", aws__username=["ann"]), "older policies know no variables"
    team = "arn:aws:s3:::box/${aws:PrincipalTag/team, 'all'}/*"
    assert may(team, "red/x", aws__principaltag_S_team=["red"]) and may(team, "all/x")
    assert not may(team, "all/x", aws__principaltag_S_team=["red"])


def test_a_policy_variable_in_a_condition() -> None:
    same = {"StringEquals": {"aws:ResourceTag/team": "${aws:PrincipalTag/team}"}}
    tagged = {"aws:resourcetag/team": ["red"]}

    def met(**more: list[str]) -> bool:
        context = tagged | {f"aws:principaltag/{key}": value for key, value in more.items()}
        return allowed([document(statement(Condition=same))], Question("s3:GetObject", FILE, context))

    assert met(team=["red"]) and not met(team=["blue"]) and not met()


ROLE, SESSION, ACCOUNT = "arn:aws:iam::1:role/ci", "arn:aws:sts::1:assumed-role/ci/run", "arn:aws:iam::1:root"
PEOPLE = (ROLE, SESSION)
TRUSTED = [
    ({"Principal": {"AWS": ROLE}}, PEOPLE, True),
    ({"Principal": {"AWS": [ACCOUNT, ROLE]}}, PEOPLE, True),
    ({"Principal": {"AWS": "arn:aws:iam::1:role/other"}}, PEOPLE, False),
    ({"Principal": "*"}, PEOPLE, True),
    ({"Principal": {"AWS": "*"}}, PEOPLE, True),
    ({"Principal": {"AWS": "*"}}, ("ec2.amazonaws.com",), False),
    ({"Principal": {"Service": "ec2.amazonaws.com"}}, ("ec2.amazonaws.com",), True),
    ({"Principal": {"Service": "ec2.amazonaws.com"}}, ("eks.amazonaws.com",), False),
    ({"Principal": {"AWS": "ec2.amazonaws.com"}}, ("ec2.amazonaws.com",), False),
    ({"Principal": {"Federated": ROLE}}, PEOPLE, False),
    ({"NotPrincipal": {"AWS": "arn:aws:iam::1:role/other"}}, PEOPLE, True),
    ({"NotPrincipal": {"AWS": ROLE}}, PEOPLE, False),
    ({}, PEOPLE, False),
]


@pytest.mark.parametrize(("who", "asks", "met"), TRUSTED)
def test_a_trust_names_whom_it_means(who: dict[str, Any], asks: tuple[str, ...], met: bool) -> None:
    trust = document({"Effect": "Allow", "Action": "sts:AssumeRole", **who})
    assert trusts(trust, asks, "sts:AssumeRole", {}) is met
    assert not trusts(trust, asks, "sts:TagSession", {})


def test_a_trust_with_the_account_that_a_service_acts_for() -> None:
    mine = {"StringEquals": {"aws:SourceAccount": "1"}}
    trust = document(
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "x.amazonaws.com"}, "Condition": mine}
    )
    told = {"aws:sourceaccount": ["1"]}
    assert trusts(trust, ["x.amazonaws.com"], "sts:AssumeRole", told)
    assert not trusts(trust, ["x.amazonaws.com"], "sts:AssumeRole", {"aws:sourceaccount": ["2"]})
    assert not trusts(trust, ["x.amazonaws.com"], "sts:AssumeRole", {})
    barred = {**trust, "Statement": [*trust["Statement"], {"Effect": "Deny", "Action": "*", "Principal": "*"}]}
    assert not trusts(barred, ["x.amazonaws.com"], "sts:AssumeRole", told)


def test_the_tags_of_a_call_are_read_in_each_services_spelling() -> None:
    for spelled in ({"Key": "a", "Value": "1"}, {"key": "a", "value": "1"}, {"TagKey": "a", "TagValue": "1"}):
        assert given_tags({"Tags": [spelled]}) == {"a": "1"}
    assert given_tags({"tags": {"a": "1"}}) == {"a": "1"}
